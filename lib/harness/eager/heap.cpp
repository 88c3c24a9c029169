#include "harness/eager/heap.h"

#include <map>
#include <utility>

namespace fp8lab::eager {

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Addresses without memory behind them, as cudaMalloc() returned them on an H200: the first gap that is large enough,
/// from below, or else a place below all others that begins at a multiple of 32 MiB. PyTorch's allocator takes the
/// chunk with the lowest address among free chunks of one size.
class Addresses final : public SegmentSource {
 public:
  std::byte* reserve(std::size_t bytes) override {
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      const auto [begin, length] = *gap;
      if (length < bytes) continue;
      gaps_.erase(gap);
      if (length > bytes) gaps_.emplace(begin + bytes, length - bytes);
      return at(begin);
    }
    const std::size_t taken = (bytes + kGranularity - 1) / kGranularity * kGranularity;
    bottom_ -= taken;
    if (taken > bytes) gaps_.emplace(bottom_ + bytes, taken - bytes);
    return at(bottom_);
  }
  void release(std::byte* /*segment*/, std::size_t /*bytes*/) noexcept override {}
  std::uint64_t order_of(std::byte* segment, std::uint64_t /*number*/) const override {
    return reinterpret_cast<std::uintptr_t>(segment);
  }

 private:
  static constexpr std::size_t kGranularity = 32 * kMiB;

  static std::byte* at(std::uintptr_t address) {
    return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr): never read
  }

  std::map<std::uintptr_t, std::size_t> gaps_;
  std::uintptr_t bottom_ = std::uintptr_t{1} << 56;
};

}  // namespace

Heap::Heap(bool has_allocator) {
  for (std::size_t i = 0; has_allocator && i < kStreams; ++i)
    allocators_.push_back(std::make_unique<CachingAllocator>(std::make_unique<Addresses>()));
}

Block Heap::allocate(Bytes bytes, Owner owner, Stream stream) {
  if (bytes <= 0) return 0;
  Entry entry{.bytes = bytes, .owner = owner, .allocator = nullptr, .address = nullptr};
  if (!allocators_.empty()) {
    entry.allocator = allocators_[static_cast<std::size_t>(stream)].get();
    const Bytes before = entry.allocator->allocated_bytes();
    entry.address = entry.allocator->allocate(static_cast<std::size_t>(bytes));
    entry.bytes = entry.allocator->allocated_bytes() - before;
  }
  live_ += entry.bytes;
  by_owner_[static_cast<std::size_t>(owner)] += entry.bytes;
  consider_peak();
  if (unused_.empty()) {
    entries_.push_back(entry);
    return entries_.size();
  }
  const Block block = unused_.back();
  unused_.pop_back();
  entries_[block - 1] = entry;
  return block;
}

void Heap::free(Block& block) {
  if (block == 0) return;
  const Entry& entry = entries_[block - 1];
  if (entry.allocator != nullptr) entry.allocator->free(entry.address);
  live_ -= entry.bytes;
  by_owner_[static_cast<std::size_t>(entry.owner)] -= entry.bytes;
  unused_.push_back(block);
  block = 0;
}

void Heap::free_read(Block& gradient, std::initializer_list<Block*> saved, bool recomputed) {
  if (!recomputed) free(gradient);
  for (Block* block : saved) free(*block);
  free(gradient);
}

Bytes Heap::reserved() const {
  Bytes sum = 0;
  for (const auto& allocator : allocators_) sum += allocator->reserved_bytes();
  return sum;
}

void Heap::begin_product(bool in_backward) {
  constexpr Bytes kCublasWorkspace = Bytes{32} << 20;
  if (allocators_.empty() || std::exchange(has_workspace_[in_backward ? 1 : 0], true)) return;
  allocate(kCublasWorkspace, Owner::kLibraries);
}

void Heap::enter(Phase phase) {
  phase_ = phase;
  consider_peak();
}

void Heap::consider_peak() {
  Peak& peak = peaks_[static_cast<std::size_t>(phase_)];
  if (live_ <= peak.bytes) return;
  peak = {live_, by_owner_};
}

}  // namespace fp8lab::eager

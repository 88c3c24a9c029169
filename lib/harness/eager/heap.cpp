#include "harness/eager/heap.h"

namespace fp8lab::eager {

namespace {

/// Addresses without memory behind them.
class Addresses final : public SegmentSource {
 public:
  std::byte* reserve(std::size_t bytes) override {
    next_ += bytes;
    return reinterpret_cast<std::byte*>(next_ - bytes);  // NOLINT(performance-no-int-to-ptr): never read
  }
  void release(std::byte* /*segment*/, std::size_t /*bytes*/) noexcept override {}

 private:
  std::uintptr_t next_ = std::uintptr_t{2} << 20;  // segments are multiples of 2 MiB
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

Bytes Heap::reserved() const {
  Bytes sum = 0;
  for (const auto& allocator : allocators_) sum += allocator->reserved_bytes();
  return sum;
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

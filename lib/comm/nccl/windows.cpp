#include "comm/nccl/windows.h"

#include <iterator>
#include <utility>

#include "backend/cuda/cuda_check.h"
#include "comm/gather_source.h"
#include "comm/nccl/nccl_library.h"

namespace fp8lab::nccl {
namespace {

constexpr int kOffsetBits = 44;  // no segment is larger

}  // namespace

class Windows::Source final : public GatherSource {
 public:
  Source(std::shared_ptr<Windows> windows, int ordinal) : windows_(std::move(windows)), ordinal_(ordinal) {}

  // Gathers end everywhere at once, so when this card has finished, no other uses the segment either.
  void release(std::byte* segment, std::size_t) noexcept override {
    cudaSetDevice(ordinal_);
    cudaDeviceSynchronize();
    windows_->drop(segment);
    api().mem_free(segment);
  }

 private:
  ProcessGroup* host() override { return windows_->host_; }
  std::byte* take(std::size_t bytes) override {
    void* segment = nullptr;
    if (api().mem_alloc(&segment, bytes) == ncclSuccess) return static_cast<std::byte*>(segment);
    cudaGetLastError();  // this failure is the allocator's to handle, not the next launch's
    return nullptr;
  }
  void share(std::byte* segment, std::size_t bytes) override { windows_->add(segment, bytes); }

  std::shared_ptr<Windows> windows_;
  int ordinal_;
};

std::unique_ptr<SegmentSource> Windows::source(std::shared_ptr<Windows> windows, int ordinal) {
  return std::make_unique<Source>(std::move(windows), ordinal);
}

std::uint64_t Windows::place_of(const std::byte* at) const {
  const auto after = windows_.upper_bound(at);
  if (after == windows_.begin()) return 0;
  const auto& [first, window] = *std::prev(after);
  const std::ptrdiff_t offset = at - first;
  return offset < window.bytes ? (window.number << kOffsetBits) + static_cast<std::uint64_t>(offset) : 0;
}

void Windows::add(std::byte* segment, std::size_t bytes) {
  registered_with_ = communicators_();
  for (Communicator* communicator : registered_with_) communicator->add_window(segment, bytes);
  windows_[segment] = {.bytes = static_cast<std::ptrdiff_t>(bytes), .number = ++seen_};
}

void Windows::drop(std::byte* segment) noexcept {
  for (Communicator* communicator : registered_with_) communicator->drop_window(segment);
  windows_.erase(segment);
}

void Windows::close() noexcept {
  host_ = nullptr;
  registered_with_.clear();
  windows_.clear();
}

}  // namespace fp8lab::nccl

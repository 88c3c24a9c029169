#include "comm/nccl/windows.h"

#include <cstdint>
#include <exception>
#include <iterator>
#include <utility>

#include "backend/cuda/cuda_check.h"
#include "comm/gather_source.h"
#include "comm/nccl/nccl_library.h"
#include "core/check.h"

namespace fp8lab::nccl {
namespace {

constexpr int kOffsetBits = 44;  // no segment is larger

}  // namespace

class Windows::Source final : public GatherSource {
 public:
  explicit Source(std::shared_ptr<Windows> windows) : windows_(std::move(windows)) {}

  // A gather ends on all ranks together, so when this GPU has finished, no other GPU uses the segment either. Hazard:
  // while an exception is being handled this GPU may wait for a rank that failed, and would never finish by itself.
  void release(std::byte* segment, std::size_t) noexcept override {
    if (std::uncaught_exceptions() > 0) give_up();
    windows_->await_gpu();
    windows_->drop(segment);
    api().mem_free(segment);
  }

 private:
  ProcessGroup* host() override { return windows_->host_; }
  std::byte* take(std::size_t bytes) override {
    void* segment = nullptr;
    if (api().mem_alloc(&segment, bytes) == ncclSuccess) return static_cast<std::byte*>(segment);
    cudaGetLastError();  // clears the error: the allocator handles it, and the next launch must not report it
    return nullptr;
  }
  void share(std::byte* segment, std::size_t bytes) override { windows_->add(segment, bytes); }
  void give_up() noexcept override { windows_->give_up(); }

  std::shared_ptr<Windows> windows_;
};

Windows::Windows(Args args)
    : host_(&args.host),
      ordinal_(args.ordinal),
      abort_flag_(std::move(args.abort_flag)),
      communicator_(std::move(args.communicator)) {}

Windows::~Windows() {
  if (flags_ == nullptr) return;
  await_gpu();
  api().mem_free(flags_);
}

void Windows::await_gpu() const noexcept {
  cudaSetDevice(ordinal_);
  cudaDeviceSynchronize();
}

std::unique_ptr<SegmentSource> Windows::source(std::shared_ptr<Windows> windows) {
  return std::make_unique<Source>(std::move(windows));
}

const std::pair<const std::byte* const, Windows::Window>* Windows::window_of(const std::byte* at) const {
  const auto after = windows_.upper_bound(at);
  if (after == windows_.begin()) return nullptr;
  const auto found = std::prev(after);
  return at - found->first < found->second.bytes ? &*found : nullptr;
}

std::uint64_t Windows::place_of(const std::byte* at) const {
  const auto* const found = window_of(at);
  if (found == nullptr) return 0;
  return (found->second.number << kOffsetBits) + static_cast<std::uint64_t>(at - found->first);
}

std::byte* Windows::of_rank(int rank, const std::byte* at) const {
  const auto* const found = window_of(at);
  check(found != nullptr && reach_all_, "a buffer is looked for on another rank's GPU that does not lie there");
  return found->second.by_rank[static_cast<std::size_t>(rank)] + (at - found->first);
}

bool Windows::agreed(bool here, std::string_view on) const {
  std::int32_t refused = here ? 0 : 1;
  const ReducePart part{.data = reinterpret_cast<std::byte*>(&refused), .elems = 1, .dtype = DType::kI32};
  host_->all_reduce(ReduceOp::kMax, {&part, 1}, on);
  return refused == 0;
}

bool Windows::try_out(std::byte* segment, const Window& window) const {
  const auto mark_of = [&](int rank) { return (window.number << 16) + static_cast<std::uint64_t>(rank) + 1; };
  std::vector<std::uint64_t> marks(static_cast<std::size_t>(host_->size()));
  const auto own = static_cast<std::size_t>(host_->rank());
  const std::uint64_t mark = mark_of(host_->rank());
  bool left = !window.by_rank.empty() && window.bytes >= static_cast<std::ptrdiff_t>(marks.size() * sizeof mark);
  for (std::size_t other = 0; other < marks.size() && left; ++other)
    left = cudaMemcpy(window.by_rank[other] + own * sizeof mark, &mark, sizeof mark, cudaMemcpyDefault) == cudaSuccess;
  left = left && cudaStreamSynchronize(nullptr) == cudaSuccess;
  const bool all_left = agreed(left, "windows are marked");
  if (!all_left) return false;
  bool found = cudaMemcpy(marks.data(), segment, marks.size() * sizeof mark, cudaMemcpyDefault) == cudaSuccess;
  for (int rank = 0; rank < host_->size() && found; ++rank)
    found = marks[static_cast<std::size_t>(rank)] == mark_of(rank);
  return agreed(found, "windows are seen");
}

Windows::Window Windows::open(std::byte* segment, std::size_t bytes) {
  Window window{.bytes = static_cast<std::ptrdiff_t>(bytes),
                .number = ++seen_,
                .by_rank = registered_with_->add_window(segment, bytes)};
  if (reach_all_) reach_all_ = try_out(segment, window);
  cudaGetLastError();  // clears the error of a window that cannot be reached; it is none, here or in the next launch
  return window;
}

void Windows::open_barriers() {
  void* memory = nullptr;
  const bool fits = host_->size() <= cuda::PeerBarrier::kMostRanks;
  const bool here = fits && api().mem_alloc(&memory, PeerBarriers::kFlagsBytes) == ncclSuccess;
  flags_ = static_cast<std::byte*>(memory);
  const bool everywhere = agreed(here, "flags are there");
  if (!everywhere) {
    reach_all_ = false;
    cudaGetLastError();
    return;
  }
  Window window = open(flags_, PeerBarriers::kFlagsBytes);  // try_out() leaves its marks in the flags
  const bool cleared =
      cudaMemset(flags_, 0, PeerBarriers::kFlagsBytes) == cudaSuccess && cudaStreamSynchronize(nullptr) == cudaSuccess;
  reach_all_ = agreed(cleared && reach_all_, "flags are clear");
  if (reach_all_)
    barriers_.emplace(PeerBarriers::Args{
        .flags_by_rank = std::move(window.by_rank), .rank = host_->rank(), .abort_flag = abort_flag_});
}

void Windows::add(std::byte* segment, std::size_t bytes) {
  const bool first = registered_with_ == nullptr;
  registered_with_ = &communicator_();
  if (first) open_barriers();
  windows_[segment] = open(segment, bytes);
}

void Windows::drop(std::byte* segment) noexcept {
  if (registered_with_ != nullptr) registered_with_->drop_window(segment);
  windows_.erase(segment);
}

void Windows::give_up() noexcept {
  if (registered_with_ != nullptr) registered_with_->abort();
}

void Windows::close() noexcept {
  host_ = nullptr;
  registered_with_ = nullptr;
  windows_.clear();
}

}  // namespace fp8lab::nccl

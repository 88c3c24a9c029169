#include "backend/cuda/peer/peer_access.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <utility>

#include "backend/cuda/cuda_check.h"
#include "core/check.h"
#include "core/shape.h"

namespace fp8lab::cuda {
namespace {

constexpr std::uintptr_t kWideBytes = 16;
/// From this many bytes to other GPUs per call, and per array, copy engines copy them instead of the multiprocessors.
/// Between two and four H200 both were equally fast at the first threshold, at 303 to 331 GB/s; the second exists
/// because every copy of an engine has to be set up.
constexpr std::int64_t kEnginesFromBytes = std::int64_t{32} << 20;
constexpr std::int64_t kEngineArrayBytes = std::int64_t{2} << 20;
/// From this many bytes on, a rank's copies within its own GPU run on a stream next to its copies to others; for fewer
/// bytes the fork takes longer than it saves (16 MiB between two H200: 41 us instead of 32). The own copies may take as
/// long as the others take over the link, so they get only the multiprocessors that this needs: at full speed they
/// slow down the traffic over the link (by an eighth of the time for 218 MB). If products need the multiprocessors
/// meanwhile, all multiprocessors for a short time are better than a few for a long time: 0.93 of a gather of 512 MiB
/// is hidden behind products that way, and 0.82 the other way.
constexpr std::int64_t kBesideFromBytes = std::int64_t{16} << 20;
constexpr int kBesideMultiprocessors = 12;

std::int64_t bytes_of(std::span<const PeerCopy> copies) {
  std::int64_t total = 0;
  for (const PeerCopy& copy : copies) total += copy.from == copy.to ? 0 : copy.bytes;
  return total;
}

bool is_wide(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at) % kWideBytes == 0; }

bool is_wide(const PeerCopy& copy) { return is_wide(copy.from) && is_wide(copy.to); }
bool is_void(const PeerCopy& copy) { return copy.from == copy.to || copy.bytes == 0; }

/// Collects copies and passes them to the copy engines, up to kMost in one call of the driver.
class EngineCopies {
 public:
  explicit EngineCopies(cudaStream_t stream) : stream_(stream) {}

  void add(const PeerCopy& copy) {
    if (count_ == kMost) launch();
    to_[count_] = copy.to;
    from_[count_] = copy.from;
    bytes_[count_++] = static_cast<std::size_t>(copy.bytes);
  }

  void launch() {
    if (count_ == 0) return;
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    cuda_check(cudaMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(), count_, &attributes, &first, 1, stream_),
               "cudaMemcpyBatchAsync");
    count_ = 0;
  }

 private:
  static constexpr std::size_t kMost = 128;
  cudaStream_t stream_;
  std::array<void*, kMost> to_;
  std::array<const void*, kMost> from_;
  std::array<std::size_t, kMost> bytes_;
  std::size_t count_ = 0;
};

struct CudaPeerSlot final : PeerSlot {
  int ordinal = 0;
  Event begun = make_event();
  Event ended = make_event();
};

class CudaPeerStream final : public PeerStream {
 public:
  explicit CudaPeerStream(CudaContext& context)
      : context_(context), slot_(std::make_shared<CudaPeerSlot>()), collective_{.stream = context.stream()} {
    slot_->ordinal = context.ordinal();
  }
  ~CudaPeerStream() override { quiesce(); }

  std::shared_ptr<PeerSlot> slot() const override { return slot_; }

  void admit(std::span<const std::shared_ptr<PeerSlot>> slots) override {
    for (const std::shared_ptr<PeerSlot>& slot : slots) {
      slots_.push_back(std::static_pointer_cast<CudaPeerSlot>(slot));
      reach(slots_.back()->ordinal);
    }
  }

  void begin(bool async) override {
    collective_ = {.stream = context_.stream(), .async = async};
    if (async) {
      if (!side_) open_side();
      cuda_check(cudaEventRecord(forked_.get(), collective_.stream), "cudaEventRecord");
      collective_.stream = side_.get();
      wait(forked_);
    }
    cuda_check(cudaEventRecord(slot_->begun.get(), collective_.stream), "cudaEventRecord");
  }

  void await_begun(int rank) override {
    if (const CudaPeerSlot& other = of(rank); &other != slot_.get()) wait(other.begun);
  }
  void copy(std::span<const PeerCopy> copies, std::span<const PeerCopy> own, PeerCopyPath path) override {
    copies_.launch(copies, own, path, collective_);
  }
  void reduce(std::span<const PeerReduction> reductions) override { launch_reductions(reductions, collective_.stream); }
  void end() override { cuda_check(cudaEventRecord(slot_->ended.get(), collective_.stream), "cudaEventRecord"); }
  void await_ended(int rank) override {
    if (const CudaPeerSlot& other = of(rank); &other != slot_.get()) wait(other.ended);
  }

  void wait_for_async() override {
    if (!side_) return;
    cuda_check(cudaEventRecord(joined_.get(), side_.get()), "cudaEventRecord");
    cuda_check(cudaStreamWaitEvent(context_.stream(), joined_.get(), 0), "cudaStreamWaitEvent");
  }

  void quiesce() noexcept override {
    cudaStreamSynchronize(context_.stream());
    if (side_) cudaStreamSynchronize(side_.get());
    copies_.quiesce();
  }

 private:
  const CudaPeerSlot& of(int rank) const { return *slots_[static_cast<std::size_t>(rank)]; }
  void wait(const Event& event) {
    cuda_check(cudaStreamWaitEvent(collective_.stream, event.get(), 0), "cudaStreamWaitEvent");
  }

  void open_side() {
    side_ = make_stream();
    forked_ = make_event();
    joined_ = make_event();
  }

  void reach(int other) const {
    if (other == context_.ordinal()) return;
    int reaches = 0;
    cuda_check(cudaDeviceCanAccessPeer(&reaches, context_.ordinal(), other), "cudaDeviceCanAccessPeer");
    if (reaches == 0)
      fail(fmt::format("GPU {} cannot reach the memory of GPU {}; run these ranks as processes, or over 'nccl'",
                       context_.ordinal(), other));
    // Hazard: peer access holds for the entire process, and enabling it twice is an error. Rule: each pair of GPUs is
    // enabled once, and a library in the process may have enabled it before.
    static std::mutex mutex;
    static std::set<std::pair<int, int>> reached;
    const std::scoped_lock lock(mutex);
    const std::pair pair(context_.ordinal(), other);
    if (reached.contains(pair)) return;
    const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled)
      cudaGetLastError();
    else
      cuda_check(status, "cudaDeviceEnablePeerAccess");
    reached.insert(pair);
  }

  CudaContext& context_;
  std::shared_ptr<CudaPeerSlot> slot_;
  std::vector<std::shared_ptr<CudaPeerSlot>> slots_;  ///< by rank
  CollectiveStream collective_;                       ///< stream of the current collective
  Stream side_;
  Event forked_;
  Event joined_;
  PeerCopies copies_;
};

}  // namespace

void PeerCopies::launch(std::span<const PeerCopy> copies, std::span<const PeerCopy> own, PeerCopyPath path,
                        const CollectiveStream& collective) {
  // Within a GPU the multiprocessors copy many times as fast as the link to other GPUs.
  const PeerCopyPath own_path = path == PeerCopyPath::kBySize ? PeerCopyPath::kProcessors : path;
  if (bytes_of(own) < kBesideFromBytes) {
    if (const auto batch = batch_of(copies, own, path)) return peer_copy(*batch, collective.stream);
    launch_copies(own, own_path, collective.stream);
    return launch_copies(copies, path, collective.stream);
  }
  if (!beside_) {
    beside_ = make_stream();
    parted_ = make_event();
    rejoined_ = make_event();
  }
  cuda_check(cudaEventRecord(parted_.get(), collective.stream), "cudaEventRecord");
  cuda_check(cudaStreamWaitEvent(beside_.get(), parted_.get(), 0), "cudaStreamWaitEvent");
  launch_copies(copies, path, collective.stream);
  launch_copies(own, own_path, beside_.get(), collective.async ? 0 : kBesideMultiprocessors);
  cuda_check(cudaEventRecord(rejoined_.get(), beside_.get()), "cudaEventRecord");
  cuda_check(cudaStreamWaitEvent(collective.stream, rejoined_.get(), 0), "cudaStreamWaitEvent");
}

void PeerCopies::quiesce() noexcept {
  if (beside_) cudaStreamSynchronize(beside_.get());
}

void CopyBatch::add(const PeerCopy& copy) {
  jobs[static_cast<std::size_t>(count++)] = {
      .from = copy.from, .to = copy.to, .bytes = copy.bytes, .first_block = blocks};
  blocks += ceil_div(copy.bytes, kCopyBlockBytes);
}

std::optional<CopyBatch> batch_of(std::span<const PeerCopy> copies, std::span<const PeerCopy> own, PeerCopyPath path) {
  if (path == PeerCopyPath::kCopyEngines || (path == PeerCopyPath::kBySize && bytes_of(copies) >= kEnginesFromBytes))
    return {};
  std::optional<CopyBatch> batch(std::in_place);
  for (const auto some : {copies, own})
    for (const PeerCopy& copy : some) {
      if (is_void(copy)) continue;
      if (!is_wide(copy) || batch->full()) return {};
      batch->add(copy);
    }
  return batch;
}

void launch_copies(std::span<const PeerCopy> copies, PeerCopyPath path, cudaStream_t stream, int multiprocessors) {
  const bool by_size = path == PeerCopyPath::kBySize && bytes_of(copies) >= kEnginesFromBytes;
  EngineCopies by_engine(stream);
  CopyBatch batch;
  for (const PeerCopy& copy : copies) {
    if (is_void(copy)) continue;
    if (path == PeerCopyPath::kCopyEngines || (by_size && copy.bytes >= kEngineArrayBytes) || !is_wide(copy)) {
      by_engine.add(copy);
      continue;
    }
    if (batch.full()) {
      peer_copy(batch, stream, multiprocessors);
      batch = {};
    }
    batch.add(copy);
  }
  peer_copy(batch, stream, multiprocessors);
  by_engine.launch();
}

void launch_reductions(std::span<const PeerReduction> reductions, cudaStream_t stream) {
  ReduceBatch batch;
  const auto flush = [&] {
    peer_reduce(batch, stream);
    batch.count = batch.pointers_used = 0;
    batch.blocks = 0;
  };
  for (const PeerReduction& reduction : reductions) {
    if (reduction.elems == 0) continue;
    const auto pointers = static_cast<int>(reduction.sources.size() + reduction.targets.size());
    if (pointers > ReduceBatch::kMostPointers)
      fail(fmt::format("a reduction over {} ranks of one process: 128 are the most", reduction.sources.size()));
    if (batch.count == ReduceBatch::kMostJobs || batch.pointers_used + pointers > ReduceBatch::kMostPointers) flush();
    ReduceJob& job = batch.jobs[static_cast<std::size_t>(batch.count++)];
    job = {.elems = reduction.elems,
           .first_block = batch.blocks,
           .sources = static_cast<int>(reduction.sources.size()),
           .targets = static_cast<int>(reduction.targets.size()),
           .first_pointer = batch.pointers_used,
           .dtype = reduction.dtype,
           .maximum = reduction.maximum,
           .wide = true};
    const auto add = [&](const std::byte* pointer) {
      batch.pointers[static_cast<std::size_t>(batch.pointers_used++)] = const_cast<std::byte*>(pointer);
      job.wide = job.wide && is_wide(pointer);
    };
    for (const std::byte* source : reduction.sources) add(source);
    for (const std::byte* target : reduction.targets) add(target);
    batch.blocks += ceil_div(reduction.elems, kReduceBlockElems);
  }
  flush();
}

std::string CudaPeerAccess::gpu() const {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, context_.ordinal()), "cudaGetDeviceProperties");
  return {properties.uuid.bytes, sizeof properties.uuid.bytes};
}

std::unique_ptr<PeerStream> CudaPeerAccess::open_stream() { return std::make_unique<CudaPeerStream>(context_); }

void CudaPeerAccess::to_host(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes == 0) return;
  cuda_check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, context_.stream()),
             "cudaMemcpyAsync");
  context_.synchronize();
}

void CudaPeerAccess::from_host(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes == 0) return;
  cuda_check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, context_.stream()),
             "cudaMemcpyAsync");
  context_.synchronize();
}

}  // namespace fp8lab::cuda

#include "comm/nccl/nccl_group.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/peer/peer_access.h"
#include "comm/nccl/calls.h"
#include "comm/nccl/gathers.h"
#include "comm/nccl/nccl_library.h"
#include "comm/nccl/windows.h"
#include "comm/slices.h"
#include "core/check.h"
#include "core/shape.h"

namespace fp8lab::nccl {
namespace {

constexpr std::int64_t kLineBytes = 256;
/// Bytes of other ranks' summands in flight; larger reductions take several rounds.
constexpr std::int64_t kStagingBytes = std::int64_t{64} << 20;
/// Up to this size every rank reduces everything itself, which saves an exchange.
constexpr std::int64_t kSmallBytes = std::int64_t{64} << 10;

std::int64_t bytes_of(std::int64_t elems, DType dtype) { return elems * static_cast<std::int64_t>(size_bytes(dtype)); }

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(ProcessGroup& host, Device& device, const NcclGroupOptions& options,
            std::unique_ptr<ProcessGroup> owned = nullptr)
      : ProcessGroup(identity_of(host)),
        host_(host),
        owned_(std::move(owned)),
        device_(device),
        gpu_(cuda::cuda_context(device.context())),
        options_(options),
        uncaught_(std::uncaught_exceptions()),
        windows_(std::make_shared<Windows>(
            Windows::Args{.host = host_,
                          .ordinal = gpu_.ordinal(),
                          .abort_flag = abort_flag_,
                          .communicator = [this]() -> Communicator& { return communicator(); }})),
        gathers_({.rank = rank(),
                  .ranks = size(),
                  .writes_from_bytes = options.writes_from_bytes,
                  .path = options.peer_copies},
                 *windows_, gpu_) {}

  ~NcclGroup() override {
    windows_->close();
    if (std::uncaught_exceptions() > uncaught_) abandon();
  }

  const Device* device() const override { return &device_; }
  ProcessGroup& host() override { return host_; }

  void wait_for_async() override {
    if (!side_) return;
    cuda_check(cudaEventRecord(joined_.get(), side_.get()), "cudaEventRecord");
    cuda_check(cudaStreamWaitEvent(gpu_.stream(), joined_.get(), 0), "cudaStreamWaitEvent");
  }

  std::unique_ptr<SegmentSource> gather_source() override {
    return options_.gather_windows && size() > 1 ? Windows::source(windows_) : nullptr;
  }

 private:
  void do_all_gather(const Signature& call, std::span<const GatherPart> parts, bool async) override {
    Signature placed = call;
    gathers_.choose(parts, placed);
    enter(placed);
    gathers_.launch(call, parts, communicator(), {.stream = begin(async), .async = async});
  }

  /// Part number `round` of `rounds` of a slice.
  static Slice cut(const Slice& full, std::int64_t round, std::int64_t rounds) {
    const std::int64_t first = full.elems * round / rounds, last = full.elems * (round + 1) / rounds;
    return {.first = full.first + first, .elems = last - first};
  }

  /// Staging memory of exchange(), which takes that many rounds.
  struct Staging {
    std::byte* memory;
    std::int64_t rounds;
  };
  /// Before enter(), because it may throw OutOfMemory: NCCL would block a rank that came later without this one.
  template <class Part, class SliceOf>
  Staging reserve_for(std::span<const Part> parts, const SliceOf& slice_of_part) {
    std::int64_t most = 1;
    for (int other = 0; other < size(); ++other) {
      std::int64_t bytes = 0;
      for (std::size_t i = 0; i < parts.size(); ++i)
        bytes += (size() - 1) * round_up(bytes_of(slice_of_part(i, other).elems, parts[i].dtype), kLineBytes);
      most = std::max(most, bytes);
    }
    const std::int64_t rounds = ceil_div(most, kStagingBytes);
    // Cutting into rounds rounds each piece up to a line.
    const std::int64_t pieces = static_cast<std::int64_t>(parts.size()) * size();
    return {reserve(ceil_div(most, rounds) + 2 * pieces * kLineBytes), rounds};
  }

  /// Sends every rank its slice of the parts, and reduces this rank's own slice of parts[i] into target(i).
  /// `slice_of_part(i, rank)` is rank `rank`'s slice of parts[i].
  template <class Part, class SliceOf, class Target>
  void exchange(const Signature& call, std::span<const Part> parts, const SliceOf& slice_of_part, const Target& target,
                const Staging& staging) {
    Communicator& over = communicator();
    const cudaStream_t stream = begin(false);
    for (std::int64_t round = 0; round < staging.rounds; ++round) {
      begin_reductions(parts.size());
      Launch launch(over, stream);
      std::byte* at = staging.memory;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const DType dtype = parts[i].dtype;
        const Slice own = cut(slice_of_part(i, rank()), round, staging.rounds);
        for (int other = 0; other < size(); ++other) {
          if (other == rank()) {
            sources_.push_back(source_of(parts[i]) + bytes_of(own.first, dtype));
            continue;
          }
          const Slice theirs = cut(slice_of_part(i, other), round, staging.rounds);
          launch.send(source_of(parts[i]) + bytes_of(theirs.first, dtype), bytes_of(theirs.elems, dtype), other);
          launch.receive(at, bytes_of(own.elems, dtype), other);
          sources_.push_back(at);
          at += round_up(bytes_of(own.elems, dtype), kLineBytes);
        }
        const std::int64_t skipped = own.first - slice_of_part(i, rank()).first;
        targets_.push_back(target(i) + bytes_of(skipped, dtype));
        add_reduction({.dtype = dtype, .maximum = call.op == ReduceOp::kMax, .elems = own.elems});
      }
      launch.go();
      cuda::launch_reductions(reductions_, stream);
    }
    over.watch(call, stream);
  }

  void do_reduce_scatter(const Signature& call, std::span<const ScatterPart> parts) override {
    const auto slice_of_part = [&](std::size_t i, int other) {
      const auto at = static_cast<std::size_t>(other);
      const std::int64_t first = parts[i].offsets_elems[at];
      return Slice{.first = first, .elems = parts[i].offsets_elems[at + 1] - first};
    };
    const Staging staging = reserve_for(parts, slice_of_part);
    enter(call);
    exchange(call, parts, slice_of_part, [&](std::size_t i) { return parts[i].to; }, staging);
  }

  // As elsewhere, each rank reduces one slice of every tensor and sends the result to all ranks. Small tensors are
  // reduced by every rank.
  void do_all_reduce(const Signature& call, std::span<const ReducePart> parts) override {
    if (call.bytes <= kSmallBytes) return reduce_everywhere(call, parts);
    const auto slice_of_part = [&](std::size_t i, int other) { return slice_of(parts[i], i, other, size()); };
    const auto target = [&](std::size_t i) {
      return parts[i].data + bytes_of(slice_of_part(i, rank()).first, parts[i].dtype);
    };
    const Staging staging = reserve_for(parts, slice_of_part);
    enter(call);
    exchange(call, parts, slice_of_part, target, staging);
    Communicator& over = communicator();
    Launch launch(over, gpu_.stream());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const DType dtype = parts[i].dtype;
      const Slice own = slice_of(parts[i], i, rank(), size());
      for (int other = 0; other < size(); ++other) {
        if (other == rank()) continue;
        const Slice theirs = slice_of(parts[i], i, other, size());
        launch.send(parts[i].data + bytes_of(own.first, dtype), bytes_of(own.elems, dtype), other);
        launch.receive(parts[i].data + bytes_of(theirs.first, dtype), bytes_of(theirs.elems, dtype), other);
      }
    }
    launch.go();
    over.watch(call, gpu_.stream());
  }

  void reduce_everywhere(const Signature& call, std::span<const ReducePart> parts) {
    std::int64_t bytes = 0;
    for (const ReducePart& part : parts) bytes += round_up(size() * bytes_of(part.elems, part.dtype), kLineBytes);
    std::byte* at = reserve(bytes);
    enter(call);
    Communicator& over = communicator();
    const cudaStream_t stream = begin(false);
    begin_reductions(parts.size());
    Launch launch(over, stream);
    for (const ReducePart& part : parts) {
      const std::int64_t each = bytes_of(part.elems, part.dtype);
      launch.all_gather(part.data, at, each);
      for (int other = 0; other < size(); ++other) sources_.push_back(at + other * each);
      targets_.push_back(part.data);
      add_reduction({.dtype = part.dtype, .maximum = call.op == ReduceOp::kMax, .elems = part.elems});
      at += round_up(size() * each, kLineBytes);
    }
    launch.go();
    cuda::launch_reductions(reductions_, stream);
    over.watch(call, stream);
  }

  void do_broadcast(const Signature& call, std::span<const BroadcastPart> parts) override {
    enter(call);
    Communicator& over = communicator();
    const cudaStream_t stream = begin(false);
    Launch launch(over, stream);
    for (const BroadcastPart& part : parts) launch.broadcast(part.data, part.bytes, call.root);
    launch.go();
    over.watch(call, stream);
  }

  void do_ring_exchange(const Signature& call, std::span<const ExchangePart> parts) override {
    enter(call);
    Communicator& over = communicator();
    const cudaStream_t stream = begin(false);
    Launch launch(over, stream);
    for (const ExchangePart& part : parts) {
      launch.send(part.from, part.bytes, receiver(call));
      launch.receive(part.to, part.bytes, sender(call));
    }
    launch.go();
    over.watch(call, stream);
  }

  void do_all_to_all(const Signature& call, std::span<const AllToAllPart> parts) override {
    enter(call);
    Communicator& over = communicator();
    const cudaStream_t stream = begin(false);
    Launch launch(over, stream);
    for (const AllToAllPart& part : parts)
      for (int other = 0; other < size(); ++other) {
        launch.send(part.from + place_sent(part, rank(), other), bytes_between(part, rank(), other), other);
        launch.receive(part.to + place_received(part, other, rank()), bytes_between(part, other, rank()), other);
      }
    launch.go();
    over.watch(call, stream);
  }

  void do_barrier(const Signature& call) override { enter(call); }

  std::unique_ptr<ProcessGroup> do_split(const Signature& call, int color, Identity identity) override {
    std::unique_ptr<ProcessGroup> group;
    try {
      group = split_over(host_, call, color, std::move(identity));
    } catch (...) {
      abandon();
      throw;
    }
    ProcessGroup& host = *group;
    return std::make_unique<NcclGroup>(host, device_, options_, std::move(group));
  }

  /// The barrier on the host. If another rank has failed, work on the GPU that waits for it is ended before the error
  /// goes on.
  void enter(const Signature& call) {
    try {
      barrier_over(host_, call);
    } catch (...) {
      abandon();
      throw;
    }
    fail_in_trouble();
  }

  void fail_in_trouble() const {
    if (const std::string cause = options_.trouble->cause(); !cause.empty()) fail(cause);
  }

  void abandon() noexcept {
    if (communicator_) communicator_->abort();
  }

  /// Made at its first use, which is in a collective, so all ranks make it together.
  Communicator& communicator() {
    if (communicator_) return *communicator_;
    ncclUniqueId id{};
    if (rank() == 0) nccl_check(api().get_unique_id(&id), "ncclGetUniqueId");
    const BroadcastPart part{.data = reinterpret_cast<std::byte*>(&id), .bytes = sizeof id};
    host_.broadcast(0, {&part, 1}, "NCCL's id");
    communicator_ = std::make_unique<Communicator>(Communicator::Args{.id = id,
                                                                      .rank = rank(),
                                                                      .ranks = size(),
                                                                      .group = name(),
                                                                      .timeout = options_.timeout,
                                                                      .trouble = options_.trouble,
                                                                      .abort_flag = abort_flag_,
                                                                      .one_process = options_.one_process,
                                                                      .notify = options_.notify},
                                                   gpu_);
    return *communicator_;
  }

  /// The stream on which a collective is launched.
  cudaStream_t begin(bool async) {
    if (!async) return gpu_.stream();
    if (!side_) {
      side_ = cuda::make_stream();
      forked_ = cuda::make_event();
      joined_ = cuda::make_event();
    }
    cuda_check(cudaEventRecord(forked_.get(), gpu_.stream()), "cudaEventRecord");
    cuda_check(cudaStreamWaitEvent(side_.get(), forked_.get(), 0), "cudaStreamWaitEvent");
    return side_.get();
  }

  static const std::byte* source_of(const ScatterPart& part) { return part.from; }
  static const std::byte* source_of(const ReducePart& part) { return part.data; }

  /// Staging memory of this group, used in stream order.
  std::byte* reserve(std::int64_t bytes) {
    if (bytes > staging_bytes_) {
      gpu_.synchronize();
      fail_in_trouble();  // the watch may have ended what this waited for, and the communicator with it
      staging_.reset();
      staging_bytes_ = 0;
      staging_ = gpu_.allocate(static_cast<std::size_t>(bytes));
      staging_bytes_ = bytes;
    }
    return staging_.get();
  }

  // Spans of reductions point into these vectors, so their memory is reserved before the first reduction is added.
  void begin_reductions(std::size_t parts) {
    reductions_.clear();
    sources_.clear();
    targets_.clear();
    sources_.reserve(parts * static_cast<std::size_t>(size()));
    targets_.reserve(parts);
  }
  void add_reduction(PeerReduction reduction) {
    reduction.sources = std::span(sources_).last(static_cast<std::size_t>(size()));
    reduction.targets = std::span(targets_).last(1);
    reductions_.push_back(reduction);
  }

  ProcessGroup& host_;
  std::unique_ptr<ProcessGroup> owned_;
  Device& device_;
  cuda::CudaContext& gpu_;
  NcclGroupOptions options_;
  int uncaught_;
  std::shared_ptr<AbortFlag> abort_flag_ = std::make_shared<AbortFlag>();
  std::shared_ptr<Windows> windows_;  // outlives the communicator, which has windows in its memory
  std::unique_ptr<Communicator> communicator_;
  cuda::Stream side_;
  cuda::Event forked_;
  cuda::Event joined_;
  cuda::DeviceBytes staging_;
  std::int64_t staging_bytes_ = 0;
  Gathers gathers_;
  std::vector<PeerReduction> reductions_;  // these vectors keep their memory between calls
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_nccl_group(ProcessGroup& host, Device& device, const NcclGroupOptions& options) {
  return std::make_unique<NcclGroup>(host, device, options);
}

}  // namespace fp8lab::nccl

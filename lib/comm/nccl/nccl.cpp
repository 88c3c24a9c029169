#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/nccl/nccl_group.h"
#include "comm/nccl/nccl_library.h"
#include "comm/nccl/nccl_ranks.h"
#include "comm/process_groups.h"
#include "core/check.h"

namespace fp8lab {
namespace {

using nccl::NcclGroupOptions;

/// A group of another row, except that for_device() makes NCCL groups.
class HostGroup final : public ProcessGroup {
 public:
  HostGroup(ProcessGroup& host, const NcclGroupOptions& options, std::unique_ptr<ProcessGroup> owned = nullptr)
      : ProcessGroup(identity_of(host)), host_(host), options_(options), owned_(std::move(owned)) {}

 private:
  void do_all_gather(const Signature& call, std::span<const GatherPart> parts, bool) override {
    do_over(host_, call, parts);
  }
  void do_reduce_scatter(const Signature& call, std::span<const ScatterPart> parts) override {
    do_over(host_, call, parts);
  }
  void do_all_reduce(const Signature& call, std::span<const ReducePart> parts) override { do_over(host_, call, parts); }
  void do_broadcast(const Signature& call, std::span<const BroadcastPart> parts) override {
    do_over(host_, call, parts);
  }
  void do_ring_exchange(const Signature& call, std::span<const ExchangePart> parts) override {
    do_over(host_, call, parts);
  }
  void do_all_to_all(const Signature& call, std::span<const AllToAllPart> parts) override {
    do_over(host_, call, parts);
  }
  void do_barrier(const Signature& call) override { barrier_over(host_, call); }

  std::unique_ptr<ProcessGroup> do_split(const Signature& call, int color, Identity identity) override {
    std::unique_ptr<ProcessGroup> group = split_over(host_, call, color, std::move(identity));
    ProcessGroup& host = *group;
    return std::make_unique<HostGroup>(host, options_, std::move(group));
  }

  std::unique_ptr<ProcessGroup> do_for_device(const Signature& call, Device& device) override {
    barrier_over(host_, call);  // all ranks provide devices of one name
    if (device.name() != "cuda" || size() == 1) return host_.for_device(device);
    const bool shared = gpus_are_shared(device);
    if (shared) return host_.for_device(device);
    return nccl::make_nccl_group(host_, device, options_);
  }

  /// True if two ranks use one GPU, which NCCL refuses.
  bool gpus_are_shared(Device& device) {
    const std::uint64_t own = std::hash<std::string>()(device.peer_access()->gpu());
    std::vector<std::uint64_t> all(static_cast<std::size_t>(size()));
    std::vector<std::int64_t> offsets(all.size() + 1);
    for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int64_t>(i * sizeof own);
    const GatherPart part{.from = reinterpret_cast<const std::byte*>(&own),
                          .to = reinterpret_cast<std::byte*>(all.data()),
                          .offsets_bytes = offsets};
    host_.all_gather({&part, 1}, "GPUs");
    return std::set<std::uint64_t>(all.begin(), all.end()).size() < all.size();
  }

  ProcessGroup& host_;
  NcclGroupOptions options_;
  std::unique_ptr<ProcessGroup> owned_;
};

}  // namespace

std::string nccl_unavailable_reason() {
  const std::string no_gpu = device_row("cuda").unavailable_reason();
  return no_gpu.empty() ? find_library<nccl::NcclLibrary>().unavailable_reason() : no_gpu;
}

void run_nccl(const RunOptions& options, const RankFunction& rank_function) {
  check(options.over != "nccl", "ranks of 'nccl' are those of another row: RunOptions::over");
  RunOptions host_options = options;
  host_options.launches_on_gpus = true;
  run_ranks(options.over, host_options, [&](ProcessGroup& host) {
    const NcclGroupOptions gpu_options{.timeout = options.timeout,
                                       .writes_from_bytes = options.writes_from_bytes,
                                       .peer_copies = options.peer_copies,
                                       .gather_windows = options.gather_windows,
                                       .trouble = std::make_shared<nccl::Trouble>(),
                                       .one_process = options.over == "in_process",
                                       .notify = options.notify};
    HostGroup world(host, gpu_options);
    rank_function(world);
    // An error of GPU work that did not finish after the last barrier.
    if (const std::string cause = gpu_options.trouble->cause(); !cause.empty()) fail(cause);
  });
}

}  // namespace fp8lab

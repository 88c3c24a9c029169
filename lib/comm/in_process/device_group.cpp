#include "comm/in_process/device_group.h"

#include <utility>
#include <vector>

#include "comm/gather_writes.h"
#include "comm/in_process/group.h"
#include "comm/slices.h"

namespace fp8lab::in_process {
namespace {

/// Follows the protocol of backend/peer_access.h: a barrier, the stream's work, a second barrier (part()), and a wait
/// on the GPU for the others' work.
class DeviceGroup final : public ProcessGroup {
 public:
  DeviceGroup(World& world, GroupState& group_state, ProcessGroup& host, Device& device)
      : ProcessGroup(identity_of(host)),
        world_(world),
        group_state_(group_state),
        host_(host),
        device_(device),
        stream_(device.peer_access()->open_stream()) {}

  void own(std::unique_ptr<ProcessGroup> host) { owned_ = std::move(host); }

  void admit(const Signature& call) {
    const std::shared_ptr<PeerSlot> own = stream_->slot();
    group_state_.barrier(rank(), call, &own);
    std::vector<std::shared_ptr<PeerSlot>> slots;
    for (int other = 0; other < size(); ++other)
      slots.push_back(*static_cast<const std::shared_ptr<PeerSlot>*>(group_state_.parts_of(rank(), other)));
    group_state_.part(rank());
    stream_->admit(slots);
  }

  const Device* device() const override { return &device_; }
  ProcessGroup& host() override { return host_; }
  void wait_for_async() override { stream_->wait_for_async(); }

 private:
  template <class Part>
  const Part* parts_of(int other) const {
    return static_cast<const Part*>(group_state_.parts_of(rank(), other));
  }

  /// `work` launches this rank's share. If it throws, this rank stops using the others' buffers before they leave
  /// part(), and leaves itself once they have stopped using its own.
  template <class Work>
  void together(const Signature& call, const void* parts, const Work& work, bool async = false) {
    stream_->begin(async);
    group_state_.barrier(rank(), call, parts);
    try {
      for (int other = 0; other < size(); ++other) stream_->await_begun(other);
      work();
      stream_->end();
    } catch (...) {
      stream_->quiesce();
      group_state_.part(rank());
      try {
        for (int other = 0; other < size(); ++other) stream_->await_ended(other);
      } catch (const Error&) {  // the GPU has failed, and the first error describes it
      }
      stream_->quiesce();
      throw;
    }
    group_state_.part(rank());
    for (int other = 0; other < size(); ++other) stream_->await_ended(other);
  }

  void do_all_gather(const Signature& call, std::span<const GatherPart> parts, bool async) override {
    together(
        call, parts.data(),
        [&] {
          copies_.clear();
          const std::size_t own = add_gather_writes(
              parts, rank(), size(), [&](int target, std::size_t i) { return parts_of<GatherPart>(target)[i].to; },
              copies_);
          const std::span<const PeerCopy> all(copies_);
          stream_->copy(all.first(all.size() - own), all.last(own), world_.peer_copies());
        },
        async);
  }

  void do_reduce_scatter(const Signature& call, std::span<const ScatterPart> parts) override {
    together(call, parts.data(), [&] {
      const auto own = static_cast<std::size_t>(rank());
      begin_reductions(parts.size(), 1);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::int64_t first = parts[i].offsets_elems[own];
        const std::int64_t skipped = first * static_cast<std::int64_t>(size_bytes(parts[i].dtype));
        for (int source = 0; source < size(); ++source)
          sources_.push_back(parts_of<ScatterPart>(source)[i].from + skipped);
        targets_.push_back(parts[i].to);
        add_reduction({.dtype = parts[i].dtype, .elems = parts[i].offsets_elems[own + 1] - first}, 1);
      }
      stream_->reduce(reductions_);
    });
  }

  // Each rank reduces one slice of every tensor and writes the result to all ranks. No other rank touches that slice.
  void do_all_reduce(const Signature& call, std::span<const ReducePart> parts) override {
    together(call, parts.data(), [&] {
      const auto ranks = static_cast<std::size_t>(size());
      begin_reductions(parts.size(), ranks);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const Slice slice = slice_of(parts[i], i, rank(), size());
        const std::int64_t skipped = slice.first * static_cast<std::int64_t>(size_bytes(parts[i].dtype));
        for (int other = 0; other < size(); ++other) {
          std::byte* const theirs = parts_of<ReducePart>(other)[i].data + skipped;
          sources_.push_back(theirs);
          targets_.push_back(theirs);
        }
        add_reduction({.dtype = parts[i].dtype, .maximum = call.op == ReduceOp::kMax, .elems = slice.elems}, ranks);
      }
      stream_->reduce(reductions_);
    });
  }

  void do_broadcast(const Signature& call, std::span<const BroadcastPart> parts) override {
    together(call, parts.data(), [&] {
      copies_.clear();
      for (std::size_t i = 0; i < parts.size(); ++i)
        copies_.push_back(
            {.from = parts_of<BroadcastPart>(call.root)[i].data, .to = parts[i].data, .bytes = parts[i].bytes});
      stream_->copy(copies_, {}, world_.peer_copies());
    });
  }

  void do_ring_exchange(const Signature& call, std::span<const ExchangePart> parts) override {
    together(call, parts.data(), [&] {
      copies_.clear();
      for (std::size_t i = 0; i < parts.size(); ++i)
        copies_.push_back(
            {.from = parts_of<ExchangePart>(sender(call))[i].from, .to = parts[i].to, .bytes = parts[i].bytes});
      stream_->copy(copies_, {}, world_.peer_copies());
    });
  }

  // Each rank writes what it sends, as in gathers.
  void do_all_to_all(const Signature& call, std::span<const AllToAllPart> parts) override {
    together(call, parts.data(), [&] {
      copies_.clear();
      for (int step = 1; step <= size(); ++step) {
        const int target = (rank() + step) % size();
        for (std::size_t i = 0; i < parts.size(); ++i)
          copies_.push_back({.from = parts[i].from + place_sent(parts[i], rank(), target),
                             .to = parts_of<AllToAllPart>(target)[i].to + place_received(parts[i], rank(), target),
                             .bytes = bytes_between(parts[i], rank(), target)});
      }
      const std::span<const PeerCopy> all(copies_);
      stream_->copy(all.first(all.size() - parts.size()), all.last(parts.size()), world_.peer_copies());
    });
  }

  void do_barrier(const Signature& call) override { group_state_.barrier(rank(), call, nullptr); }

  std::unique_ptr<ProcessGroup> do_split(const Signature& call, int color, Identity identity) override {
    group_state_.barrier(rank(), call, nullptr);
    GroupState& group_state =
        world_.group_state({.parent = &group_state_, .number = ++groups_made_, .color = color, .on_gpus = true},
                           identity.name, identity.world_ranks);
    // Calls are numbered from 1, so a group with number 0 collides with no other group.
    GroupState& host_state =
        world_.group_state({.parent = &group_state, .number = 0, .color = 0}, identity.name, identity.world_ranks);
    std::unique_ptr<ProcessGroup> host =
        make_group(world_, host_state, std::move(identity.world_ranks), identity.rank, identity.moves_data);
    auto group = std::make_unique<DeviceGroup>(world_, group_state, *host, device_);
    group->own(std::move(host));
    group->admit(call);
    return group;
  }

  // Spans of reductions point into these vectors, so their memory is reserved before the first reduction is added.
  void begin_reductions(std::size_t parts, std::size_t targets_each) {
    reductions_.clear();
    sources_.clear();
    targets_.clear();
    sources_.reserve(parts * static_cast<std::size_t>(size()));
    targets_.reserve(parts * targets_each);
  }
  /// Adds a reduction of the sources and targets that were added last.
  void add_reduction(PeerReduction reduction, std::size_t targets) {
    reduction.sources = std::span(sources_).last(static_cast<std::size_t>(size()));
    reduction.targets = std::span(targets_).last(targets);
    reductions_.push_back(reduction);
  }

  World& world_;
  GroupState& group_state_;
  ProcessGroup& host_;
  std::unique_ptr<ProcessGroup> owned_;
  Device& device_;
  std::uint64_t groups_made_ = 0;
  std::unique_ptr<PeerStream> stream_;
  std::vector<PeerCopy> copies_;  // these vectors keep their memory between calls
  std::vector<PeerReduction> reductions_;
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> targets_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_device_group(World& world, GroupState& group_state, ProcessGroup& host,
                                                Device& device, const Signature& call) {
  auto group = std::make_unique<DeviceGroup>(world, group_state, host, device);
  group->admit(call);
  return group;
}

}  // namespace fp8lab::in_process

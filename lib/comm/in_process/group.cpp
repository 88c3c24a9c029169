#include "comm/in_process/group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/in_process/device_group.h"
#include "comm/reduce.h"
#include "comm/slices.h"

namespace fp8lab::in_process {
namespace {

// All ranks of an all-gather read the same sources in the same order. Steps fit in the cache, so ranks that read a
// source after the first one find it there.
constexpr std::int64_t kStepBytes = std::int64_t{256} << 10;

void copy_bytes(const std::byte* from, std::byte* to, std::int64_t bytes) {
  if (from == to) return;
  for (std::int64_t done = 0; done < bytes; done += kStepBytes)
    std::memcpy(to + done, from + done, static_cast<std::size_t>(std::min(kStepBytes, bytes - done)));
}

class InProcessGroup final : public ProcessGroup {
 public:
  InProcessGroup(World& world, GroupState& group_state, Identity identity)
      : ProcessGroup(std::move(identity)),
        world_(world),
        group_state_(group_state),
        sources_(static_cast<std::size_t>(size())),
        targets_(static_cast<std::size_t>(size())) {}

  static std::unique_ptr<ProcessGroup> make(World& world, GroupState& group_state, std::vector<int> world_ranks,
                                            int rank, bool moves_data) {
    const int local_rank = world_ranks[static_cast<std::size_t>(rank)];
    return std::make_unique<InProcessGroup>(world, group_state,
                                            Identity{.name = group_state.name(),
                                                     .world_ranks = std::move(world_ranks),
                                                     .rank = rank,
                                                     .local_rank = local_rank,
                                                     .moves_data = moves_data});
  }

 private:
  /// The parts that `other` passed to the collective that this rank is in: the same number, by the lock-step rule.
  template <class Part>
  const Part* parts_of(int other) const {
    return static_cast<const Part*>(group_state_.parts_of(rank(), other));
  }

  void do_all_gather(const Signature& call, std::span<const GatherPart> parts, bool) override {
    group_state_.barrier(rank(), call, parts.data());
    if (!moves_data()) return;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (int source = 0; source < size(); ++source) {
        const auto slot = static_cast<std::size_t>(source);
        const std::int64_t first = parts[i].offsets_bytes[slot];
        copy_bytes(parts_of<GatherPart>(source)[i].from, parts[i].to + first, parts[i].offsets_bytes[slot + 1] - first);
      }
    }
    group_state_.part(rank());
  }

  void do_reduce_scatter(const Signature& call, std::span<const ScatterPart> parts) override {
    group_state_.barrier(rank(), call, parts.data());
    if (!moves_data()) return;
    const auto own = static_cast<std::size_t>(rank());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const ScatterPart& part = parts[i];
      const std::int64_t first = part.offsets_elems[own];
      reduce_slice({.dtype = part.dtype, .elems = part.offsets_elems[own + 1] - first}, first,
                   [&](int source) { return parts_of<ScatterPart>(source)[i].from; }, {&part.to, 1});
    }
    group_state_.part(rank());
  }

  // Each rank reduces one slice of every tensor and writes the result to all ranks. No other rank touches that slice.
  void do_all_reduce(const Signature& call, std::span<const ReducePart> parts) override {
    group_state_.barrier(rank(), call, parts.data());
    if (!moves_data()) return;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const ReducePart& part = parts[i];
      const Slice slice = slice_of(part, i, rank(), size());
      const auto skipped = slice.first * static_cast<std::int64_t>(size_bytes(part.dtype));
      for (std::size_t other = 0; other < targets_.size(); ++other)
        targets_[other] = parts_of<ReducePart>(static_cast<int>(other))[i].data + skipped;
      reduce_slice(
          {.op = call.op, .dtype = part.dtype, .elems = slice.elems}, slice.first,
          [&](int source) { return parts_of<ReducePart>(source)[i].data; }, targets_);
    }
    group_state_.part(rank());
  }

  void do_broadcast(const Signature& call, std::span<const BroadcastPart> parts) override {
    group_state_.barrier(rank(), call, parts.data());
    if (!moves_data()) return;
    for (std::size_t i = 0; i < parts.size(); ++i)
      copy_bytes(parts_of<BroadcastPart>(call.root)[i].data, parts[i].data, parts[i].bytes);
    group_state_.part(rank());
  }

  void do_ring_exchange(const Signature& call, std::span<const ExchangePart> parts) override {
    group_state_.barrier(rank(), call, parts.data());
    if (!moves_data()) return;
    for (std::size_t i = 0; i < parts.size(); ++i)
      copy_bytes(parts_of<ExchangePart>(sender(call))[i].from, parts[i].to, parts[i].bytes);
    group_state_.part(rank());
  }

  void do_all_to_all(const Signature& call, std::span<const AllToAllPart> parts) override {
    group_state_.barrier(rank(), call, parts.data());
    if (!moves_data()) return;
    for (std::size_t i = 0; i < parts.size(); ++i)
      for (int source = 0; source < size(); ++source)
        copy_bytes(parts_of<AllToAllPart>(source)[i].from + place_sent(parts[i], source, rank()),
                   parts[i].to + place_received(parts[i], source, rank()), bytes_between(parts[i], source, rank()));
    group_state_.part(rank());
  }

  void do_barrier(const Signature& call) override { group_state_.barrier(rank(), call, nullptr); }

  std::unique_ptr<ProcessGroup> do_split(const Signature& call, int color, Identity identity) override {
    group_state_.barrier(rank(), call, nullptr);
    GroupState& group_state = world_.group_state({.parent = &group_state_, .number = ++groups_made_, .color = color},
                                                 identity.name, identity.world_ranks);
    return std::make_unique<InProcessGroup>(world_, group_state, std::move(identity));
  }

  std::unique_ptr<ProcessGroup> do_for_device(const Signature& call, Device& device) override {
    group_state_.barrier(rank(), call, nullptr);
    const Identity identity = identity_of(*this);
    GroupState& group_state =
        world_.group_state({.parent = &group_state_, .number = ++groups_made_, .color = 0, .on_gpus = true},
                           identity.name, identity.world_ranks);
    return make_device_group(world_, group_state, *this, device, call);
  }

  /// Reduces the arrays that `source(rank)` points to, from element `first` on.
  template <class Source>
  void reduce_slice(Reduction reduction, std::int64_t first, const Source& source,
                    std::span<std::byte* const> targets) {
    if (reduction.elems == 0) return;
    const std::int64_t skipped = first * static_cast<std::int64_t>(size_bytes(reduction.dtype));
    for (std::size_t other = 0; other < sources_.size(); ++other)
      sources_[other] = source(static_cast<int>(other)) + skipped;
    reduction.sources = sources_;
    reduction.targets = targets;
    reduce(reduction);
  }

  World& world_;
  GroupState& group_state_;
  std::uint64_t groups_made_ = 0;          ///< calls that made groups; equal on every rank
  std::vector<const std::byte*> sources_;  ///< one per rank, filled for each reduction
  std::vector<std::byte*> targets_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_group(World& world, GroupState& group_state, std::vector<int> world_ranks, int rank,
                                         bool moves_data) {
  return InProcessGroup::make(world, group_state, std::move(world_ranks), rank, moves_data);
}

}  // namespace fp8lab::in_process

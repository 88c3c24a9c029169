#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "comm/process_group.h"

namespace fp8lab::support {

/// A collective that has just ended on one rank.
struct SeenCollective {
  int run = 0;       ///< the number of the TrainingRun, from 1; 0: the world itself
  int scatters = 0;  ///< reduce-scatters of that run before this collective
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string_view group{};
  std::byte* received = nullptr;  ///< the first byte of what this rank received, or null
};

/// May change the bytes that the rank received, or throw.
using SeeCollective = std::function<void(const SeenCollective&)>;

/// One rank's group; a test sees its collectives. Each TrainingRun makes a group of the world for its device.
class DriftingGroup final : public ProcessGroup {
 public:
  DriftingGroup(ProcessGroup& host, SeeCollective see)
      : DriftingGroup(host, nullptr, std::make_shared<State>(State{.see = std::move(see)}), 0) {}

 private:
  struct State {
    SeeCollective see;
    int runs = 0;
    int scatters = 0;  ///< reduce-scatters of the last run
  };

  DriftingGroup(ProcessGroup& host, std::unique_ptr<ProcessGroup> owned, std::shared_ptr<State> state, int run)
      : ProcessGroup(identity_of(host)), host_(host), owned_(std::move(owned)), state_(std::move(state)), run_(run) {}

  void see(CollectiveKind kind, std::byte* received) const {
    state_->see({.run = run_, .scatters = state_->scatters, .kind = kind, .group = name(), .received = received});
  }

  void do_all_gather(const Signature& call, std::span<const GatherPart> parts, bool) override {
    do_over(host_, call, parts);
    see(call.kind, parts.empty() || parts[0].offsets_bytes.back() == 0 ? nullptr : parts[0].to);
  }
  void do_reduce_scatter(const Signature& call, std::span<const ScatterPart> parts) override {
    do_over(host_, call, parts);
    const auto own = static_cast<std::size_t>(rank());
    const bool any = !parts.empty() && parts[0].offsets_elems[own + 1] > parts[0].offsets_elems[own];
    see(call.kind, any ? parts[0].to : nullptr);
    ++state_->scatters;
  }
  void do_all_reduce(const Signature& call, std::span<const ReducePart> parts) override {
    do_over(host_, call, parts);
    see(call.kind, parts.empty() || parts[0].elems == 0 ? nullptr : parts[0].data);
  }
  void do_broadcast(const Signature& call, std::span<const BroadcastPart> parts) override {
    do_over(host_, call, parts);
    see(call.kind, parts.empty() || parts[0].bytes == 0 ? nullptr : parts[0].data);
  }
  void do_ring_exchange(const Signature& call, std::span<const ExchangePart> parts) override {
    do_over(host_, call, parts);
    see(call.kind, parts.empty() || parts[0].bytes == 0 ? nullptr : parts[0].to);
  }
  void do_all_to_all(const Signature& call, std::span<const AllToAllPart> parts) override {
    do_over(host_, call, parts);
    see(call.kind, parts.empty() ? nullptr : parts[0].to);
  }
  void do_barrier(const Signature& call) override {
    barrier_over(host_, call);
    see(call.kind, nullptr);
  }
  std::unique_ptr<ProcessGroup> do_split(const Signature& call, int color, Identity identity) override {
    std::unique_ptr<ProcessGroup> group = split_over(host_, call, color, std::move(identity));
    see(call.kind, nullptr);
    if (call.kind == CollectiveKind::kAttach) ++state_->runs, state_->scatters = 0;
    const int run = call.kind == CollectiveKind::kAttach ? state_->runs : run_;
    ProcessGroup& host = *group;
    return std::unique_ptr<ProcessGroup>(new DriftingGroup(host, std::move(group), state_, run));
  }

  ProcessGroup& host_;
  std::unique_ptr<ProcessGroup> owned_;
  std::shared_ptr<State> state_;
  int run_;
};

}  // namespace fp8lab::support

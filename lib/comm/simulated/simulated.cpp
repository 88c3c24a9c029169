#include "comm/simulated/simulated.h"

#include <fmt/core.h>

#include <memory>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace fp8lab {
namespace {

class SimulatedGroup final : public ProcessGroup {
 public:
  SimulatedGroup(Identity identity, std::stop_token stop) : ProcessGroup(std::move(identity)), stop_(std::move(stop)) {}

  static SimulatedGroup world(const RunOptions& options) {
    Identity identity{.name = "world",
                      .world_ranks = std::vector<int>(static_cast<std::size_t>(options.ranks)),
                      .rank = options.simulated_rank,
                      .local_rank = options.simulated_rank,
                      .moves_data = false};
    std::iota(identity.world_ranks.begin(), identity.world_ranks.end(), 0);
    return {std::move(identity), options.stop};
  }

 private:
  void do_all_gather(const Signature& call, std::span<const GatherPart>, bool) override { proceed(call); }
  void do_reduce_scatter(const Signature& call, std::span<const ScatterPart>) override { proceed(call); }
  void do_all_reduce(const Signature& call, std::span<const ReducePart>) override { proceed(call); }
  void do_broadcast(const Signature& call, std::span<const BroadcastPart>) override { proceed(call); }
  void do_ring_exchange(const Signature& call, std::span<const ExchangePart>) override { proceed(call); }
  void do_all_to_all(const Signature& call, std::span<const AllToAllPart>) override { proceed(call); }
  void do_barrier(const Signature& call) override { proceed(call); }
  std::unique_ptr<ProcessGroup> do_split(const Signature& call, int, Identity identity) override {
    proceed(call);
    return std::make_unique<SimulatedGroup>(std::move(identity), stop_);
  }

  void proceed(const Signature& call) const {
    if (stop_.stop_requested()) throw_aborted(call, name(), kStoppedFromOutside);
  }

  std::stop_token stop_;
};

}  // namespace

std::string simulated_unavailable_reason() { return {}; }

void run_simulated(const RunOptions& options, const RankFunction& rank_function) {
  if (options.simulated_rank < 0 || options.simulated_rank >= options.ranks)
    fail(fmt::format("simulated rank {} is none of {} ranks", options.simulated_rank, options.ranks));
  SimulatedGroup group = SimulatedGroup::world(options);
  try {
    rank_function(group);
  } catch (...) {
    const Failure failure = current_failure();
    if (!failure.echo) throw_failure(failure, options.simulated_rank, options.ranks);
  }
  check(!options.stop.stop_requested(), kStoppedFromOutside);
}

}  // namespace fp8lab

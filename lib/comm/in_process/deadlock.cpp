#include "comm/in_process/deadlock.h"

#include <fmt/core.h>

#include <algorithm>

#include "comm/in_process/group_state.h"
#include "comm/in_process/world.h"

namespace fp8lab::in_process {

DeadlockSearch::DeadlockSearch(int ranks) : seen_(static_cast<std::size_t>(ranks)) { cycle_.reserve(seen_.size()); }

bool DeadlockSearch::found(const World& world, int rank) {
  for (;;) {
    cycle_.clear();
    std::fill(seen_.begin(), seen_.end(), 0);
    if (!leads_back(world, rank, rank)) return false;
    if (std::ranges::all_of(cycle_, [&](const Wait& wait) { return world.waits(wait); })) return true;
    // A rank proceeded meanwhile, so these waits never held together. Other waits may, so search again.
  }
}

bool DeadlockSearch::leads_back(const World& world, int rank, int start) {
  seen_[static_cast<std::size_t>(rank)] = 1;
  const GroupState* const group_state = world.pending_group(rank);
  if (group_state == nullptr) return false;
  const std::uint64_t arrival = group_state->arrivals_of(rank);
  for (const int other : group_state->world_ranks()) {
    if (group_state->arrivals_of(other) >= arrival) continue;
    const bool known = seen_[static_cast<std::size_t>(other)] != 0;
    if (known && other != start) continue;
    cycle_.push_back({.rank = rank, .absent = other, .group_state = group_state, .arrival = arrival});
    if (other == start || leads_back(world, other, start)) return true;
    cycle_.pop_back();
  }
  return false;
}

std::string DeadlockSearch::describe(const World& world) const {
  std::string text = "ranks wait for each other in different collectives:";
  for (const Wait& wait : cycle_)
    text += fmt::format("{} rank {} waits for rank {} in {}", &wait == cycle_.data() ? "" : ";", wait.rank, wait.absent,
                        world.pending_call(wait.rank));
  return text + "; one of them skipped a collective, or they call theirs in different orders";
}

}  // namespace fp8lab::in_process

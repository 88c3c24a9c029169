#include "comm/in_process/world.h"

#include <fmt/core.h>

#include <utility>

#include "comm/in_process/group_state.h"

namespace fp8lab::in_process {

World::World(const RunOptions& options)
    : timeout_(options.timeout), peer_copies_(options.peer_copies), launches_on_gpus_(options.launches_on_gpus) {
  for (int rank = 0; rank < options.ranks; ++rank) activities_.emplace_back(options.ranks);
}

World::~World() = default;

void World::abort(Failure failure, int rank) {
  {
    const std::lock_guard lock(cause_mutex_);
    if (aborted()) return;
    cause_ = std::move(failure);
    cause_rank_ = rank;
    aborted_.store(true, std::memory_order_release);
  }
  wake_all();
}

std::string World::reason() const {
  const std::lock_guard lock(cause_mutex_);
  return cause_rank_ < 0 ? cause_.reason : fmt::format("rank {} died: {}", cause_rank_, cause_.reason);
}

void World::throw_cause() const {
  if (!aborted()) return;
  const std::lock_guard lock(cause_mutex_);
  if (cause_rank_ < 0) fail(cause_.reason);
  throw_failure(cause_, cause_rank_, static_cast<int>(activities_.size()));
}

void World::leave(int rank) {
  activities_[static_cast<std::size_t>(rank)].left.store(true, std::memory_order_release);
  wake_all();
}

void World::begin(int rank, const GroupState& group_state, const Signature& call) {
  Activity& activity = activities_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(activity.mutex);
  activity.pending = Call{&group_state, call};
}

void World::complete(int rank) {
  Activity& activity = activities_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(activity.mutex);
  std::swap(activity.completed, activity.pending);
  activity.pending.reset();
}

const GroupState* World::pending_group(int rank) const {
  const Activity& activity = activities_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(activity.mutex);
  return activity.pending ? activity.pending->group_state : nullptr;
}

std::string World::pending_call(int rank) const {
  const Activity& activity = activities_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(activity.mutex);
  return activity.pending ? describe(*activity.pending) : "";
}

bool World::waits(const Wait& wait) const {
  return pending_group(wait.rank) == wait.group_state && wait.group_state->arrivals_of(wait.rank) == wait.arrival &&
         wait.group_state->arrivals_of(wait.absent) < wait.arrival;
}

void World::abort_deadlock(int rank) {
  DeadlockSearch& search = activities_[static_cast<std::size_t>(rank)].search;
  if (search.found(*this, rank)) abort({.reason = search.describe(*this)});
}

std::string World::describe(const Call& call) { return fp8lab::describe(call.signature, call.group_state->name()); }

std::string World::whereabouts(int rank) const {
  const Activity& activity = activities_[static_cast<std::size_t>(rank)];
  const std::lock_guard lock(activity.mutex);
  const std::optional<Call>& completed = activity.completed;
  const std::optional<Call>& pending = activity.pending;
  std::string text = completed
                         ? fmt::format("; the last collective that rank {} completed is {}", rank, describe(*completed))
                         : fmt::format("; rank {} has completed no collective", rank);
  if (pending) text += fmt::format(", and it waits in {}", describe(*pending));
  return text;
}

GroupState& World::group_state(const GroupKey& key, const std::string& name, const std::vector<int>& world_ranks) {
  const std::lock_guard lock(groups_mutex_);
  for (const KeyedGroup& known : groups_)
    if (known.key == key) return *known.group_state;
  const GroupState::Spinning spinning =
      key.on_gpus || launches_on_gpus_ ? GroupState::Spinning::kLong : GroupState::Spinning::kShort;
  return *groups_.emplace_back(KeyedGroup{key, std::make_unique<GroupState>(*this, name, world_ranks, spinning)})
              .group_state;
}

void World::wake_all() {
  const std::lock_guard lock(groups_mutex_);
  for (const KeyedGroup& known : groups_) known.group_state->wake();
}

}  // namespace fp8lab::in_process

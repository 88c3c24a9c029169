#include "comm/in_process/group_state.h"

#include <chrono>
#include <thread>
#include <utility>

namespace fp8lab::in_process {
namespace {

// About a microsecond of spinning, which is the cost of waking a sleeper. If there are more ranks than processors,
// spinning would keep the awaited rank from running, so ranks sleep at once. Yielding would not help, because it hands
// the processor to any process of the machine.
constexpr int kSpins = 1000;
constexpr int kLongSpins = 100'000;

int spins_before_sleeping(std::size_t ranks, GroupState::Spinning spinning) {
  if (ranks > std::thread::hardware_concurrency()) return 1;
  return spinning == GroupState::Spinning::kLong ? kLongSpins : kSpins;
}

}  // namespace

GroupState::GroupState(World& world, std::string name, std::vector<int> world_ranks, Spinning spinning)
    : world_(world),
      name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      slots_(world_ranks_.size()),
      spin_count_(spins_before_sleeping(slots_.size(), spinning)) {}

void GroupState::barrier(int rank, const Signature& call, const void* parts) {
  BarrierSlot& own = slot(rank);
  const int world_rank = world_ranks_[static_cast<std::size_t>(rank)];
  if (world_.aborted()) throw_aborted(call, name_, world_.reason());
  world_.begin(world_rank, *this, call);
  ++own.barriers;
  own.posted[own.barriers % 2] = {call, parts};
  if (!arrive(rank) || !await_all_unless_aborted(rank)) throw_aborted(call, name_, world_.reason());
  compare(rank, call);
  world_.complete(world_rank);
}

void GroupState::part(int rank) {
  arrive(rank);
  if (spin(rank)) return;
  std::unique_lock lock(mutex_);
  ++sleepers_;
  changed_.wait(lock, [&] { return all_arrived(rank); });
  --sleepers_;
}

const GroupState::Posted& GroupState::posted(int viewer, int rank) const {
  const std::uint64_t barrier = slots_[static_cast<std::size_t>(viewer)].barriers;
  return slots_[static_cast<std::size_t>(rank)].posted[barrier % 2];
}

// Every rank compares every call with rank 0's, so that all ranks find the same mismatch, or none does.
void GroupState::compare(int rank, const Signature& call) {
  const Signature& first = posted(rank, 0).call;
  for (int other = 1; other < static_cast<int>(slots_.size()); ++other) {
    const Signature& theirs = posted(rank, other).call;
    if (theirs == first) continue;
    world_.abort({.reason = describe_mismatch(name_, world_ranks_.front(), first,
                                              world_ranks_[static_cast<std::size_t>(other)], theirs)});
    throw_aborted(call, name_, world_.reason());
  }
}

/// Counts this rank's arrival. False if the barrier was closed by a rank that gave up.
bool GroupState::arrive(int rank) {
  if (!arrivals_.add()) return false;
  // The slot is written after the shared count: a rank that sees a count that is too low then also finds the slot that
  // is behind, and can name the rank.
  BarrierSlot& own = slot(rank);
  // Sequentially consistent: of two ranks that begin to wait for each other in different groups, at least one sees that
  // the other waits, and reports the deadlock.
  own.arrivals.store(own.arrivals.load(std::memory_order_relaxed) + 1);
  if (all_arrived(rank) && sleepers_.load() > 0) wake();
  return true;
}

/// The total number of arrivals, of all ranks, that completes the barrier() or part() that `rank` is in.
std::uint64_t GroupState::target_of(int rank) const {
  return slots_[static_cast<std::size_t>(rank)].arrivals.load(std::memory_order_relaxed) * slots_.size();
}

bool GroupState::spin(int rank) const {
  for (int i = 0; i < spin_count_; ++i)
    if (all_arrived(rank)) return true;
  return false;
}

bool GroupState::await_all_unless_aborted(int rank) {
  if (spin(rank)) return true;
  world_.abort_deadlock(world_ranks_[static_cast<std::size_t>(rank)]);
  const auto deadline = std::chrono::steady_clock::now() + world_.timeout();
  bool late = false;
  std::unique_lock lock(mutex_);
  ++sleepers_;
  while (!all_arrived(rank)) {
    if (world_.aborted()) {
      arrivals_.close_short_of(target_of(rank));
      break;
    }
    if (late || misses_one_who_left(rank)) {
      lock.unlock();  // aborting wakes every group, this one too
      abort_for_missing(rank);
      lock.lock();
    } else {
      late = changed_.wait_until(lock, deadline) == std::cv_status::timeout;
    }
  }
  --sleepers_;
  return all_arrived(rank);
}

std::uint64_t GroupState::arrivals_of(int world_rank) const {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (world_ranks_[i] == world_rank) return slots_[i].arrivals.load();
  return 0;
}

bool GroupState::is_missing(std::size_t slot_index, int rank) const {
  return slots_[slot_index].arrivals.load(std::memory_order_acquire) <
         slots_[static_cast<std::size_t>(rank)].arrivals.load(std::memory_order_relaxed);
}

bool GroupState::misses_one_who_left(int rank) const {
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (is_missing(i, rank) && world_.has_left(world_ranks_[i])) return true;
  return false;
}

/// Aborts the run and names the missing ranks, unless they have arrived by now.
void GroupState::abort_for_missing(int rank) {
  const Signature& call = posted(rank, rank).call;
  std::vector<int> late;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!is_missing(i, rank)) continue;
    const int absent = world_ranks_[i];
    if (world_.has_left(absent))
      return world_.abort({.reason = describe_left(absent, call, name_) + world_.whereabouts(absent)});
    late.push_back(absent);
  }
  if (late.empty()) return;
  world_.abort({.reason = describe_late(late, call, name_, world_.timeout()) + world_.whereabouts(late.front())});
}

void GroupState::wake() {
  {
    const std::lock_guard lock(mutex_);
  }
  changed_.notify_all();
}

}  // namespace fp8lab::in_process

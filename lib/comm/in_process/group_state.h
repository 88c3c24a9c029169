#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "comm/in_process/arrivals.h"
#include "comm/in_process/world.h"
#include "comm/signature.h"

namespace fp8lab::in_process {

/// The state that the ranks of one process group share when they are threads. A collective has three steps: barrier(),
/// after which every rank sees the buffers that the others posted; copying; part(), a second barrier, after which
/// no rank reads another rank's buffers any more.
///
/// Hazard: a rank that gave up a barrier on its own would free its buffers while another rank, for which the same
/// barrier had completed, still reads them. Rule: a barrier fails for all ranks or for none. The first rank that gives
/// up (another rank died, left or is late) closes the count of arrivals, after which no arrival is counted. part()
/// never fails: every rank that completed the barrier reaches it.
class GroupState {
 public:
  /// How long a waiting rank spins before it sleeps. A rank that launches work on a GPU is late by more than a wake-up
  /// costs, so ranks with GPUs spin longer.
  enum class Spinning { kShort, kLong };
  GroupState(World& world, std::string name, std::vector<int> world_ranks, Spinning spinning = Spinning::kShort);

  const std::string& name() const { return name_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  /// How often the rank that is `world_rank` in the world has arrived at barrier() and part() of this group. A rank
  /// that waits here waits for those that have arrived less often.
  std::uint64_t arrivals_of(int world_rank) const;

  /// Posts `call` and `parts`, waits until every rank has arrived, and compares the calls. `parts` stays valid until
  /// part() returns. Throws GroupAborted on every rank if the run ends or the calls differ.
  void barrier(int rank, const Signature& call, const void* parts);
  /// What `rank` posted to the barrier that `viewer` is in.
  const void* parts_of(int viewer, int rank) const { return posted(viewer, rank).parts; }
  /// Waits until every rank has finished reading what was posted. Never fails.
  void part(int rank);
  /// Makes every sleeping rank check again whether it still has to wait.
  void wake();

 private:
  struct Posted {
    Signature call;
    const void* parts = nullptr;
  };
  struct alignas(64) BarrierSlot {
    /// Two entries in alternation: a rank that skips part() may post its next call while others still read the last
    /// one. It cannot post a third, because its next barrier waits for them.
    std::array<Posted, 2> posted;
    std::uint64_t barriers = 0;
    /// Counts barrier() and part(). Written by the slot's rank, read by ranks that wait for it.
    std::atomic<std::uint64_t> arrivals{0};
  };

  BarrierSlot& slot(int rank) { return slots_[static_cast<std::size_t>(rank)]; }
  const Posted& posted(int viewer, int rank) const;
  void compare(int rank, const Signature& call);

  bool arrive(int rank);
  std::uint64_t target_of(int rank) const;
  bool all_arrived(int rank) const { return arrivals_.reached(target_of(rank)); }
  bool spin(int rank) const;
  bool await_all_unless_aborted(int rank);
  bool is_missing(std::size_t slot_index, int rank) const;
  bool misses_one_who_left(int rank) const;
  void abort_for_missing(int rank);

  World& world_;
  std::string name_;
  std::vector<int> world_ranks_;
  std::vector<BarrierSlot> slots_;
  int spin_count_;

  alignas(64) Arrivals arrivals_;  ///< arrivals of all ranks together
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace fp8lab::in_process

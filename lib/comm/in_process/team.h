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

/// Where the ranks of one group meet. A collective is a meeting, after which all see what each brought, then copying,
/// then a parting, after which nobody reads what others brought.
///
/// A meeting can fail: a rank dies, leaves, or stays away too long. It fails for all or for none, because the first to
/// give up closes it. So after a meeting every rank is on its way to the parting, which has no reason to fail and must
/// not: the others' buffers are being read until then.
class Team {
 public:
  /// How long ranks look for each other before they sleep. Launching work on a GPU takes longer than to wake up, so
  /// ranks with GPUs look longer.
  enum class Looks { kShort, kLong };
  Team(World& world, std::string name, std::vector<int> world_ranks, Looks spin_count = Looks::kShort);

  const std::string& name() const { return name_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  /// How often the member that is `world_rank` in the whole run has arrived. One that is in a collective waits for
  /// those that have arrived less often.
  std::uint64_t arrivals_of(int world_rank) const;

  /// Shows the others `call` and `parts`, waits until all have come, and compares. Throws GroupAborted.
  void meet(int rank, const Signature& call, const void* parts);
  /// What `rank` brought to the meeting that `viewer` is in.
  const void* parts_of(int viewer, int rank) const { return brought(viewer, rank).parts; }
  /// Waits until all are done with what was brought.
  void part(int rank);
  /// Makes every waiting rank look again at whether it still has to wait.
  void wake();

 private:
  struct Brought {
    Signature call;
    const void* parts = nullptr;
  };
  struct alignas(64) Seat {
    /// Two in turn: a rank that need not part may bring the next while others still look at the last, but gets no
    /// further.
    std::array<Brought, 2> brought;
    std::uint64_t meetings = 0;
    /// How often it came to meetings and partings. Written by the rank, read by those who miss it.
    std::atomic<std::uint64_t> comings{0};
  };

  Seat& slot(int rank) { return slots_[static_cast<std::size_t>(rank)]; }
  const Brought& brought(int viewer, int rank) const;
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
  std::vector<Seat> slots_;
  int spin_count_;

  alignas(64) Arrivals arrivals_;  ///< of all ranks together
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace fp8lab::in_process

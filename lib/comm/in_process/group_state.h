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

/// The state that the ranks of one process group share. A collective is a barrier, after which all see what each
/// provided, then copying, then a parting, after which nobody reads what others provided.
///
/// A barrier can fail: a rank dies, leaves, or stays away too long. It fails for all or for none, because the first to
/// give up closes it. So after a barrier every rank is on its way to the parting, which has no reason to fail and must
/// not: the others' buffers are being read until then.
class GroupState {
 public:
  /// How long ranks look for each other before they sleep. Launching work on a GPU takes longer than to wake up, so
  /// ranks with GPUs look longer.
  enum class Spinning { kShort, kLong };
  GroupState(World& world, std::string name, std::vector<int> world_ranks, Spinning spin_count = Spinning::kShort);

  const std::string& name() const { return name_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  /// How often the member that is `world_rank` in the entire run has arrived. One that is in a collective waits for
  /// those that have arrived less often.
  std::uint64_t arrivals_of(int world_rank) const;

  /// Shows the others `call` and `parts`, waits until all have come, and compares. Throws GroupAborted.
  void barrier(int rank, const Signature& call, const void* parts);
  /// What `rank` provided to the barrier that `viewer` is in.
  const void* parts_of(int viewer, int rank) const { return posted(viewer, rank).parts; }
  /// Waits until all are done with what was provided.
  void part(int rank);
  /// Makes every waiting rank look again at whether it still has to wait.
  void wake();

 private:
  struct Posted {
    Signature call;
    const void* parts = nullptr;
  };
  struct alignas(64) BarrierSlot {
    /// Two in turn: a rank that need not part may provide the next while others still look at the last, but gets no
    /// further.
    std::array<Posted, 2> posted;
    std::uint64_t barriers = 0;
    /// How often it came to barriers and partings. Written by the rank, read by those who miss it.
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

  alignas(64) Arrivals arrivals_;  ///< of all ranks together
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace fp8lab::in_process

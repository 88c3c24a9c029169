#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fp8lab::in_process {

class GroupState;
class World;

/// `rank` waits in a collective of `group_state` that `absent` has not joined. Ranks are numbered as in the entire run.
struct Wait {
  int rank = 0;
  int absent = 0;
  const GroupState* group_state = nullptr;
  std::uint64_t arrival = 0;  ///< number of `rank`'s arrival at `group_state`, from 1

  bool operator==(const Wait&) const = default;
};

/// One rank's search for ranks that wait for each other in collectives of different groups. This happens if a rank
/// skips a collective that the others join. Calls are compared only within a group, so none of these groups finds a
/// mismatch; without the search the ranks would wait until the timeout.
class DeadlockSearch {
 public:
  explicit DeadlockSearch(int ranks);

  /// True if `rank`, which is about to sleep in a collective, waits for itself through other ranks. Other ranks may
  /// proceed meanwhile, so each wait is read twice: all waits of a cycle are then known to have held at one moment, and
  /// from then on none of them can end. If several ranks complete a cycle at the same time, at least one finds it.
  /// Allocates nothing.
  bool found(const World& world, int rank);

  /// Describes the cycle that was found: every rank with its call, and the rank that it waits for.
  std::string describe(const World& world) const;

 private:
  bool leads_back(const World& world, int rank, int start);

  std::vector<Wait> cycle_;
  std::vector<char> seen_;
};

}  // namespace fp8lab::in_process

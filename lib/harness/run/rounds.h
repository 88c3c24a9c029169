#pragma once

#include <random>
#include <vector>

#include "harness/results/verdict.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {

/// How many processes run each arm of a cell.
struct ProcessCounts {
  int fewest = 1;
  int most = 1;  ///< the limit while a gate on time is undecided
};

/// The number of processes for each arm of a cell: one. If the cell measures time or the host: `asked` if that is above
/// 0, else eight if a gate compares times. A gate on time that stays undecided gets up to three times that number.
ProcessCounts processes_of(const PlannedCell& cell, int asked);

/// The order of a cell's arms, and the figures of arms that run in several processes. Each round runs every arm once,
/// in a new random order, so that a machine that becomes slower or faster favours no arm.
class Rounds {
 public:
  Rounds(const PlannedCell& cell, std::vector<Arm> arms, ProcessCounts counts);

  /// The arms of the next round in the order in which they run; empty if `results` need none. Every arm of the round
  /// before must have been added.
  std::vector<Arm> next(const ArmResults& results);
  /// Adds the result of a process to the arm's earlier results. A process that did not end well replaces them.
  void add(Arm arm, ArmResult result, ArmResults& results) const;
  /// True until the second round begins.
  bool first() const { return done_ <= 1; }

 private:
  const PlannedCell& cell_;
  std::vector<Arm> arms_;
  ProcessCounts counts_;
  std::mt19937_64 random_;
  int done_ = 0;
};

}  // namespace fp8lab

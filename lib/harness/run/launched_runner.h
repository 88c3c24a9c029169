#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/measure/measure.h"
#include "harness/run/launched_ranks.h"
#include "harness/run/runner.h"
#include "harness/run/signal_watch.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {

/// Measures an arm over ranks: measure_arm_over() in the program, inventions in the tests.
using MeasureOver = std::function<ArmResult(const StartRanks&, const CellConfig&, Arm)>;

/// Makes the plan one for launched ranks. Throws ScenarioError, naming the line, for a cell whose `ranks` differs from
/// those launched; a cell that expects a crash becomes a skipped one, since its process would be a rank.
void fit_to_launch(std::vector<PlannedCell>& cells, const std::vector<Scenario>& scenarios, const LaunchedRanks& ranks);

/// Runs arms in this process, which is one rank of each, one after the other. An arm that fails fails on every rank,
/// and the next follows; one that takes too long is stopped at its next collective. What dies with a process is the
/// run: then run() and follow() throw RanksLost.
class LaunchedRunner {
 public:
  /// `plan`: every cell, the same on every rank; outlives this.
  LaunchedRunner(const LaunchedRanks& ranks, const std::vector<PlannedCell>& plan, const Vocabulary& vocabulary,
                 MeasureOver measure);

  /// Connects the ranks, which may take as long as an arm: the first call. Returns the signal that ended the
  /// wait, or 0. Throws Error where a rank does not come, or was started with other cells.
  int connect(const RunnerOptions& options);
  /// Rank 0's part, as run_cells(), with cells of the plan.
  int run(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, const RunnerOptions& options,
          const RunnerEvents& events);
  /// The others': does what rank 0 says until it names an exit code, and returns that.
  int follow(const RunnerOptions& options);
  /// Rank 0's last word, which follow() returns, unless they are lost.
  void dismiss(int exit_code);

 private:
  void between_arms(double longest_s, const std::function<void(const RunOptions&)>& work) const;
  void tell(const LaunchedRanks::Order& order) const;
  ArmResult run_arm(const PlannedCell& cell, Arm arm, const RunnerOptions& options);

  const LaunchedRanks& ranks_;
  const std::vector<PlannedCell>& plan_;
  std::string cells_and_arms_;  ///< what every rank must provide
  MeasureOver measure_;
  SignalWatch watch_;
  double silence_s_ =
      300;  ///< the longest that a rank between two arms waits for one that has nothing to do; by the last arm's limit
  int stopped_by_ = 0;  ///< the signal that some rank had by the end of the last arm, on every rank; 0: none
};

}  // namespace fp8lab

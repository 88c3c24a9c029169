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

/// Runs arms over ranks that a launcher started: this process is one rank of every arm, and arms run one after the
/// other. Rank 0 orders each arm, the other ranks follow. An arm that fails fails on every rank, and the next one runs;
/// an arm that takes too long is stopped at its next collective. If a process dies, the run ends: run() and follow()
/// throw RanksLost on the ranks that live.
class LaunchedRunner {
 public:
  /// `plan`: every cell, the same on every rank; outlives this.
  LaunchedRunner(const LaunchedRanks& ranks, const std::vector<PlannedCell>& plan, const Vocabulary& vocabulary,
                 MeasureOver measure);

  /// Connects the ranks, which may take as long as an arm: the first call. Returns the signal that ended the
  /// wait, or 0. Throws Error where a rank does not come, or was started with other cells.
  int connect(const RunnerOptions& options);
  /// Rank 0: as run_cells(), with cells of the plan.
  int run(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, const RunnerOptions& options,
          const RunnerEvents& events);
  /// Every other rank: runs what rank 0 orders until rank 0 sends an exit code, and returns that.
  int follow(const RunnerOptions& options);
  /// Rank 0: sends the exit code that follow() returns on the other ranks. Does nothing if ranks are lost.
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
  /// How long a rank between two arms waits for another one, which may be writing results.
  double silence_s_ = 300;
  int stopped_by_ = 0;  ///< the signal that some rank had by the end of the last arm, on every rank; 0: none
};

}  // namespace fp8lab

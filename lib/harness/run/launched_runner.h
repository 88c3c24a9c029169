#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/measure/measure.h"
#include "harness/run/launched_ranks.h"
#include "harness/run/run_folder.h"
#include "harness/run/runner.h"
#include "harness/run/signal_watch.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {

/// Measures an arm over ranks: measure_arm_over() in the program, a fake in tests.
using MeasureOver = std::function<ArmResult(const StartRanks&, const CellConfig&, Arm)>;

/// Adapts the plan to launched ranks. Throws ScenarioError, which names the line, for a cell whose `ranks` differs from
/// the number of launched ranks. Skips a cell that expects a crash, because the crash would end a rank.
void fit_to_launch(std::vector<PlannedCell>& cells, const std::vector<Scenario>& scenarios, const LaunchedRanks& ranks);

/// Runs arms over ranks that a launcher started. This process is one rank of every arm, and arms run one after the
/// other: rank 0 orders each arm, and the other ranks follow. An arm that fails fails on every rank, and the next one
/// runs; an arm that takes too long is stopped at its next collective. If a process dies, the run ends: run() and
/// follow() throw RanksLost on the other ranks.
class LaunchedRunner {
 public:
  /// `plan`: all cells, the same on every rank; must outlive this object.
  LaunchedRunner(const LaunchedRanks& ranks, const std::vector<PlannedCell>& plan, const Vocabulary& vocabulary,
                 MeasureOver measure);

  /// Connects the ranks; must be the first call. It may wait for ranks as long as an arm may run. Returns the signal
  /// that ended the wait, or 0. Throws Error if a rank does not connect or was started with other cells, and RanksLost
  /// if another rank was stopped.
  int connect(const RunnerOptions& options);
  /// On rank 0: runs cells of the plan, as run_cells() does.
  int run(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, const RunnerOptions& options,
          const RunnerEvents& events);
  /// On every other rank: runs the arms that rank 0 orders until rank 0 sends an exit code, and returns that code.
  int follow(const RunnerOptions& options);
  /// On rank 0: sends the exit code that follow() returns on the other ranks. Does nothing if ranks are lost.
  void dismiss(int exit_code);

 private:
  void between_arms(double longest_s, const std::function<void(const RunOptions&)>& work) const;
  void tell(const LaunchedRanks::Order& order) const;
  ArmResult run_arm(const PlannedCell& cell, Arm arm, const RunnerOptions& options);

  const LaunchedRanks& ranks_;
  const std::vector<PlannedCell>& plan_;
  std::string cells_and_arms_;  ///< hashes of the cells and names of their arms; must be equal on all ranks
  MeasureOver measure_;
  std::shared_ptr<const RunFolder> folder_ = RunFolder::shared();
  SignalWatch watch_;
  /// Seconds that a rank waits for another between two arms; the other may be writing results.
  double silence_s_ = 300;
  int stopped_by_ = 0;  ///< the signal that any rank received by the end of the last arm; 0: none. Equal on all ranks.
};

}  // namespace fp8lab

#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/results/record.h"
#include "harness/run/arm_process.h"
#include "harness/run/shared_arms.h"
#include "harness/run/signal_watch.h"

namespace fp8lab {

/// Closed-form figures of an arm by metric name; a metric left out has no closed form.
using PredictFunction = std::function<std::map<std::string, double>(const CellConfig&, Arm)>;

struct RunnerOptions {
  /// Arms at a time, or fewer: no more than their device's memory is predicted to hold, where it has one of its own. A
  /// cell that measures the clock runs alone, arm after arm.
  int jobs = 1;
  std::optional<double> timeout_s;  ///< seconds that an arm may take, whatever its scenario says
  ArmCommand command;
  PredictFunction predict;
  TaskFunction
      task;  ///< arms that it names alike run once, in the first cell that asks; left out: every cell runs its own
  bool isolate = false;  ///< no process runs a second arm
};

/// What the runner tells while it works. Called on the caller's thread.
struct RunnerEvents {
  /// An arm that ran in this cell, before its cell finishes; may take the timeline away, which may be large, and may
  /// throw.
  std::function<void(const CellConfig&, Arm, ArmResult&)> arm_ended;
  std::function<void(CellRecord&&)> finished;  ///< in the order in which cells finish; may throw, which stops the run
  std::function<void(int cells)> tick;         ///< about five times a second, with the number of cells that run
};

/// A way to run cells: run_cells(), or LaunchedRunner's.
using RunCells =
    std::function<int(const std::vector<PlannedCell>&, const Vocabulary&, const RunnerOptions&, const RunnerEvents&)>;

/// Seconds that an arm of the cell may take.
double time_limit(const PlannedCell& cell, const RunnerOptions& options);
/// Of a cell that is not run.
CellRecord skipped_record(const PlannedCell& cell);

/// Runs the cells, their arms in child processes, skipped ones included, and returns 0, or the signal that stopped the
/// run. Cells that were running then are not reported. A first SIGINT, SIGTERM or SIGHUP, as `watch` sees it, ends the
/// children in peace, a second one at once.
int run_cells(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, const RunnerOptions& options,
              const RunnerEvents& events, SignalWatch& watch);
/// With a watch for as long as it runs.
int run_cells(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, const RunnerOptions& options,
              const RunnerEvents& events);

/// Descriptors that run_cells() may have open at a time: those of the arms that run and of the processes that wait for
/// another on each device.
long descriptors_needed(const std::vector<PlannedCell>& cells, int jobs);

/// Puts predictions beside measurements, as judge() wants them, for an arm that provided none of its own: a dead one,
/// say.
void add_predictions(ArmResult& result, const CellConfig& cell, Arm arm, const PredictFunction& predict);

/// The record of a cell whose arms have ended.
CellRecord make_record(const PlannedCell& cell, ArmResults arms, double seconds);

}  // namespace fp8lab

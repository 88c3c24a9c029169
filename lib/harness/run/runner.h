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

/// Computes the closed-form figures of an arm by metric name. A metric without a closed form is absent.
using PredictFunction = std::function<std::map<std::string, double>(const CellConfig&, Arm)>;

/// The command line of the process that runs an arm of a cell whose subject is a library.
using LibraryCommand = std::function<ArmCommand(const CellConfig&, Arm)>;

struct RunnerOptions {
  /// The most arms that run at a time. On a device with memory of its own, fewer run if the predicted memory of more
  /// would not fit, or would only wait for each other. Cells that measure time run alone after all others, one arm
  /// after the other.
  int jobs = 1;
  bool libraries_share_gpus = false;  ///< `jobs` arms of libraries find room on the GPUs, as the user states
  std::optional<double> timeout_s;    ///< seconds that an arm may run; overrides the scenarios
  ArmCommand command;                 ///< starts arms of the own runtime
  LibraryCommand worker_command;      ///< needed if a cell's subject is a library
  PredictFunction predict;
  /// Arms of which it gives the same text run once, in the first cell that needs them. Empty: every cell runs its own.
  TaskFunction task;
  int processes = 0;     ///< for each arm of cells that measure time or the host; 0: see processes_of()
  bool isolate = false;  ///< no process runs a second arm
};

/// Callbacks of the runner, called on the caller's thread.
struct RunnerEvents {
  /// An arm ran in this cell and ended. Called before the cell finishes. May move the timeline, which may be large, out
  /// of the result. May throw.
  std::function<void(const CellConfig&, Arm, ArmResult&)> arm_ended;
  std::function<void(CellRecord&&)> finished;  ///< a cell finished; called in that order; an exception stops the run
  std::function<void(int cells)> tick;         ///< about five times a second, with the number of running cells
};

/// A function that runs cells: run_cells(), or LaunchedRunner's.
using RunCells =
    std::function<int(const std::vector<PlannedCell>&, const Vocabulary&, const RunnerOptions&, const RunnerEvents&)>;

/// Seconds that an arm of the cell may run.
double time_limit(const PlannedCell& cell, const RunnerOptions& options);
/// The record of a cell that is not run.
CellRecord skipped_record(const PlannedCell& cell, const std::string& reason);

/// Runs the arms of the cells in child processes and reports every cell, skipped ones too. Returns 0, or the signal
/// that stopped the run; cells that were running then are not reported. On the first SIGINT,
/// SIGTERM or SIGHUP that `watch` receives, children get SIGTERM and a moment to end; on the second they are killed.
int run_cells(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, const RunnerOptions& options,
              const RunnerEvents& events, SignalWatch& watch);
/// The same with a SignalWatch of its own.
int run_cells(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, const RunnerOptions& options,
              const RunnerEvents& events);

/// The most descriptors that run_cells() has open at a time: descriptors of running arms, and of processes that wait
/// for another arm on each device.
long descriptors_needed(const std::vector<PlannedCell>& cells, int jobs);

/// Sets the predictions that judge() needs in the result of an arm that has none, for example because it crashed. If
/// it ran out of memory, the result contains memory.predicted_*, as the result of an arm that finishes does.
void add_predictions(ArmResult& result, const CellConfig& cell, Arm arm, const PredictFunction& predict);

/// The record of a cell whose arms have ended.
CellRecord make_record(const PlannedCell& cell, ArmResults arms, double seconds);

}  // namespace fp8lab

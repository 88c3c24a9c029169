#include "harness/cli/one_cell.h"

#include <utility>
#include <vector>

#include "harness/run/runner.h"
#include "harness/run/signal_watch.h"
#include "harness/subjects/subjects.h"

namespace fp8lab {

OneRun run_one_cell(const PlannedCell& cell, const Program& program, std::optional<double> timeout_s) {
  const Vocabulary& vocabulary = program.vocabulary();
  Subjects subjects(program.worker_directory);
  std::vector<PlannedCell> cells{cell};
  subjects.skip_impossible(cells, vocabulary);
  RunnerOptions options;
  options.timeout_s = timeout_s;
  options.predict = program.predict;
  options.worker_command = [&](const CellConfig& config, Arm arm) { return subjects.command(config, arm); };
  OneRun out;
  RunnerEvents events;
  events.finished = [&](CellRecord&& finished) { out.record = std::move(finished); };
  out.stopped_by = run_cells(cells, vocabulary, options, events, SignalWatch::until_exit());
  return out;
}

}  // namespace fp8lab

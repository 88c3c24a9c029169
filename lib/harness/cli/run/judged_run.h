#pragma once

#include <set>
#include <string>
#include <vector>

#include "harness/cli/program.h"
#include "harness/cli/run/run_job.h"
#include "harness/run/runner.h"

namespace fp8lab {

/// Runs the cells that an earlier run has not finished, by `run_cells`, and writes and prints the results of all.
/// Returns the exit code. `entire`: the scenarios none of whose cells was left out.
int run_and_judge(const RunRequest& request, const RunnerOptions& options, const Program& program, RunJob& job,
                  const std::vector<PlannedCell>& cells, std::set<std::string> entire, const RunCells& run_cells);

}  // namespace fp8lab

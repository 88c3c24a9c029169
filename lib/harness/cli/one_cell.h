#pragma once

#include <optional>

#include "harness/cli/program.h"
#include "harness/results/record.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {

/// How a cell that runs alone ended.
struct OneRun {
  CellRecord record;
  int stopped_by = 0;  ///< the signal that stopped it; 0: none did
};

/// Runs one cell, unless its library cannot honour a key: then it is skipped.
OneRun run_one_cell(const PlannedCell& cell, const Program& program, std::optional<double> timeout_s);

}  // namespace fp8lab

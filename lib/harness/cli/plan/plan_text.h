#pragma once

#include <string>
#include <vector>

#include "harness/cli/plan/planned.h"

// What `fp8lab plan` prints.
namespace fp8lab {

/// Peaks as a table, a row a recipe, a column a number of ranks; and whether each row fits over the fewest ranks, rows
/// of one answer together.
std::string model_text(const std::vector<Planned>& plans, const ModelPlan& model);
/// A line for each arm of each cell, below it whether it fits, and the expectations that fail; with `says_what_runs`
/// how many cells can run here.
std::string scenario_text(const std::vector<Planned>& plans, bool says_what_runs);
std::string plans_json(const std::vector<Planned>& plans, const std::vector<std::string>& differs = {});

}  // namespace fp8lab

#pragma once

#include <map>
#include <string>

#include "harness/cell.h"

namespace fp8lab {

/// What an arm's memory must be, by metric name ("memory.retained_bytes"), from closed formulas over the scenario
/// that share no code with the runtime. A metric without a closed form is absent; cells of several ranks, with sharding, eight-bit
/// weights or more than plain Adam have none yet.
std::map<std::string, double> predict(const CellConfig& cell, Arm arm);

}  // namespace fp8lab

#pragma once

#include <map>
#include <string>

#include "harness/cell/cell.h"

namespace fp8lab {

/// Computes the memory and traffic of an arm on rank 0, by metric name ("memory.retained_bytes"), from closed formulas
/// over the cell's configuration that share no code with the runtime. A metric without a closed form is absent: traffic
/// where nothing is sharded; and every metric where training stops with an error, resumes, or has an optimizer that
/// predict_optimizer.cpp does not know.
std::map<std::string, double> predict(const CellConfig& config, Arm arm);

}  // namespace fp8lab

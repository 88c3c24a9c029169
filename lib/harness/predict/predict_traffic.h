#pragma once

#include <map>
#include <string>

#include "harness/predict/predict_optimizer.h"

namespace fp8lab::closed_form {

/// What rank 0 issues in a step, by metric name. Bytes are those of the arrays over all ranks that a collective is
/// about, however it moves them.
std::map<std::string, std::int64_t> traffic(const CellConfig& cell, const Scenario& scenario, const LayerAccount& layer,
                                            const OptimizerNumbers& optimizer);

}  // namespace fp8lab::closed_form

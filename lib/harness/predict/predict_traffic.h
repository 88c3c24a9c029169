#pragma once

#include <map>
#include <string>

#include "harness/predict/predict_optimizer.h"

namespace fp8lab::closed_form {

/// The collectives that rank 0 issues in a step, by metric name. Bytes are the sizes of the collectives' arrays over
/// all ranks, whatever algorithm moves them.
std::map<std::string, std::int64_t> traffic(const CellConfig& config, const CellNumbers& cell,
                                            const LayersAccount& layers, const EndsAccount& ends,
                                            const OptimizerNumbers& optimizer);

}  // namespace fp8lab::closed_form

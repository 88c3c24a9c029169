#pragma once

#include <map>
#include <string>

#include "harness/predict/predict.h"
#include "harness/predict/predict_optimizer.h"

namespace fp8lab::closed_form {

/// The buckets in which replicas of a model average gradients.
struct BucketNumbers {
  Bytes bytes = 0;         ///< they live from the model's construction on
  std::int64_t count = 0;  ///< all-reduces of a step
};
/// 0 without replication.
BucketNumbers bucket_numbers(const CellNumbers& cell, const LayersAccount& layers, const EndsAccount& ends);

/// The collectives that rank 0 issues in a step, by metric name. Bytes are the sizes of the collectives' arrays over
/// all ranks, whatever algorithm moves them.
std::map<std::string, std::int64_t> traffic(const CellConfig& config, const CellNumbers& cell,
                                            const LayersAccount& layers, const EndsAccount& ends,
                                            const OptimizerNumbers& optimizer);

/// What rank 0 receives and sends of the gathers and reductions of parameters in a step.
MovedBytes moved_by_rank(const CellConfig& config, const CellNumbers& cell, const LayersAccount& layers,
                         const EndsAccount& ends);

}  // namespace fp8lab::closed_form

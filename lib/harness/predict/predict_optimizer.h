#pragma once

#include "harness/predict/predict_ends.h"
#include "harness/predict/predict_layer.h"

namespace fp8lab::closed_form {

/// The bytes that an optimizer keeps on a rank, the schedule of a step, and its reductions.
struct OptimizerNumbers {
  Bytes average = 0;  ///< the exponential average of the weights, alive from the beginning
  Bytes state = 0;    ///< moments and master weights, alive from the first step on
  Schedule first_step, later_step;
  std::int64_t amax_reductions = 0;  ///< how often per step amaxes are reduced over ranks
  std::int64_t amax_groups = 1;      ///< all-reduces of each time: with expert parallelism up to two
  std::int64_t amaxes = 0;           ///< f32 amaxes of all weights, reduced so often
  bool reduces_norm = false;         ///< all-reduces the gradient norm, one f32, once per step
};

/// True if the cell's optimizer has a closed form and training is not resumed.
bool has_closed_form(const CellConfig& config, const CellNumbers& cell, const LayersAccount& layers);
OptimizerNumbers optimizer_numbers(const CellConfig& config, const CellNumbers& cell, const LayersAccount& layers,
                                   const EndsAccount& ends);

}  // namespace fp8lab::closed_form

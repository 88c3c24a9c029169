#pragma once

#include "harness/predict/predict_layer.h"

namespace fp8lab::closed_form {

/// What an optimizer keeps on a rank, and how a step of it goes.
struct OptimizerNumbers {
  Bytes average = 0;  ///< of the weights, from the beginning
  Bytes state = 0;    ///< from the first step on
  Schedule first_step, later_step;
  std::int64_t amax_reductions = 0;  ///< per step
  std::int64_t amaxes = 0;           ///< in each, f32
  bool reduces_norm = false;         ///< one f32 per step
};

/// True if the optimizer of the cell has a closed form.
bool has_closed_form(const CellConfig& cell, const LayerAccount& layer);
OptimizerNumbers optimizer_numbers(const CellConfig& cell, const Scenario& scenario, const LayerAccount& layer);

}  // namespace fp8lab::closed_form

#pragma once

#include "harness/cell/cell.h"
#include "harness/reference/matrix.h"

namespace fp8lab::reference_step {

/// Adam by its definition in double, with moments of its own. Betas 0.9 and 0.999, epsilon 1e-8.
class Adam {
 public:
  explicit Adam(const TrainingConfig& training) : training_(training) {}

  /// The parameters after a step from `parameters` with `gradients`, not rounded. Where the cell has master weights,
  /// these start from the parameters of the first step and go on from step to step, as the runtime's do.
  NamedMatrices step(const NamedMatrices& parameters, const NamedMatrices& gradients);

 private:
  const TrainingConfig& training_;
  int steps_ = 0;
  NamedMatrices masters_;
  NamedMatrices exp_avg_;
  NamedMatrices exp_avg_sq_;
};

}  // namespace fp8lab::reference_step

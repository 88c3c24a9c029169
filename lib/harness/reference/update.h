#pragma once

#include <set>
#include <string>

#include "harness/cell/cell.h"
#include "harness/reference/matrix.h"

namespace fp8lab::reference_step {

/// The optimizer by its definition in double: Adam or plain SGD, with a learning rate of its own, and with moments of
/// its own. Moments that the cell stores in 16 or 8 bits are computed in floats, as lib/recipe/README.md defines them,
/// and rounded between steps. Epsilon is 1e-8.
class Update {
 public:
  explicit Update(const TrainingConfig& training) : training_(training) {}

  /// The parameters after a step from `parameters` with `gradients`, not rounded. If the cell has master weights,
  /// these start from the parameters of the first step and go on from step to step, as the runtime's do. `vectors`: the
  /// parameters of one dimension; a matrix may have one row too.
  NamedMatrices step(const NamedMatrices& parameters, const NamedMatrices& gradients,
                     const std::set<std::string>& vectors);
  /// The values of the parameter `name` after the last step, rounded at random to bf16: up in magnitude if the 16 bits
  /// drawn for the element are below the fraction of a step that is cut off.
  Matrix rounded_at_random(const std::string& name, Matrix values) const;

 private:
  double learning_rate() const;

  const TrainingConfig& training_;
  int steps_ = 0;
  NamedMatrices masters_;
  NamedMatrices exp_avg_;
  NamedMatrices exp_avg_sq_;
};

}  // namespace fp8lab::reference_step

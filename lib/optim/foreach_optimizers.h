#pragma once

#include <cstdint>
#include <vector>

#include "optim/adam.h"
#include "optim/list_ops.h"

namespace fp8lab {

/// Adam as frameworks write it by default (foreach): a sequence of list operations over all parameters, without a
/// kernel of its own and without masters. The rule is Adam's, in another order of operations:
///   p *= 1 - learning_rate weight_decay;  m = lerp(m, g, w1);  v = lerp(v, g g, w2)
///   d = sqrt(v) / sqrt(c2) + epsilon;  p += -(learning_rate / c1) m / d
/// with w and c as in Adam; for L2, g += weight_decay p replaces the first statement. Parameters are updated in their
/// own type. Quantized ones are updated in eight bits, so updates below half a unit of 3 mantissa bits are lost.
/// Moments are f32.
class ForeachAdam {
 public:
  /// Throws Error for Adam's options that list operations do not support: masters, types of moments, clipping.
  ForeachAdam(std::vector<Parameter*> parameters, const AdamOptions& options);

  /// Sets the rate of the steps from now on.
  void set_learning_rate(double rate) { options_.learning_rate = rate; }
  /// Parameters without a gradient keep their value and moments, but the step counts for all parameters.
  void step(Runtime& runtime);
  std::int64_t steps() const { return steps_; }

 private:
  void make_state(Runtime& runtime);

  std::vector<Parameter*> parameters_;
  AdamOptions options_;
  std::vector<Tensor> exp_avg_;
  std::vector<Tensor> exp_avg_sq_;
  std::int64_t steps_ = 0;
};

struct SgdOptions {
  double learning_rate = 1e-4;
  double weight_decay = 0.0;
  bool decay_only_matrices = false;  ///< vectors, that is biases and parameters of norms, do not decay
};

/// Stochastic gradient descent without momentum, by list operations, as torch.optim.SGD(foreach=True):
///   g += weight_decay p;  p -= learning_rate g
/// It keeps no state, so an update is proportional to its gradient: Adam divides by the gradient's magnitude, and hides
/// a constant factor on gradients. Parameters are updated in their own type, without masters; quantized ones in eight
/// bits, so updates below half a unit of 3 mantissa bits are lost.
class Sgd {
 public:
  Sgd(std::vector<Parameter*> parameters, const SgdOptions& options);

  /// Sets the rate of the steps from now on.
  void set_learning_rate(double rate) { options_.learning_rate = rate; }
  /// Parameters without a gradient keep their value.
  void step(Runtime& runtime);

 private:
  std::vector<Parameter*> parameters_;
  SgdOptions options_;
};

}  // namespace fp8lab

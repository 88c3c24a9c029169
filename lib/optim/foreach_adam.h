#pragma once

#include <cstdint>
#include <vector>

#include "optim/adam.h"
#include "optim/list_ops.h"

namespace fp8lab {

/// Adam as a framework's default optimizer writes it: one list operation after another over all parameters, no kernel
/// of its own, no masters. The rule is Adam's, in another order of operations:
///   p *= 1 - learning_rate weight_decay;  m = lerp(m, g, w1);  v = lerp(v, g g, w2)
///   d = sqrt(v) / sqrt(c2) + epsilon;  p += -(learning_rate / c1) m / d
/// with w and c as in Adam; L2 has g += weight_decay p instead of the first. Parameters are updated in their own type,
/// quantized ones in eight bits: there only updates of half a unit of 3 mantissa bits or more are seen. Moments are
/// f32.
class ForeachAdam {
 public:
  /// Throws Error for options of Adam that lists have no use for: masters, types of moments, clipping.
  ForeachAdam(std::vector<Parameter*> parameters, const AdamOptions& options);

  /// Parameters without a gradient keep their value and moments; the step counts for all.
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

}  // namespace fp8lab

#pragma once

#include <cstdint>
#include <vector>

#include "autograd/runtime.h"

namespace fp8lab {

struct AdamOptions {
  double learning_rate = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  bool decoupled_decay = true;  ///< AdamW; otherwise decay joins the gradient (L2)
};

/// Adam over a list of parameters in one launch. Per element, in f32 and in this order:
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   p -= learning_rate * ((m / c1) / (sqrt(v / c2) + epsilon) + weight_decay p)
/// with c = 1 - beta^step computed on the host in double; L2 adds weight_decay p to g first. Moments are f32, made at the first step.
class Adam {
 public:
  Adam(std::vector<Parameter*> parameters, const AdamOptions& options);

  /// Parameters without a gradient keep their value and moments; the step counts for all.
  void step(Runtime& runtime);
  std::int64_t steps() const { return steps_; }

 private:
  struct State {
    Tensor exp_avg;
    Tensor exp_avg_sq;
  };
  void make_state(Runtime& runtime);

  std::vector<Parameter*> parameters_;
  AdamOptions options_;
  std::vector<State> states_;
  std::vector<AdamTensor> tensors_;  // kept between steps, so that a step allocates nothing
  std::int64_t steps_ = 0;
};

}  // namespace fp8lab

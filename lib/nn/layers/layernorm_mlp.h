#pragma once

#include <string>

#include "nn/cores/activation_core.h"
#include "nn/cores/linear_core.h"
#include "nn/cores/norm_core.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

/// y = act(norm(x) W1^T + b1) W2^T + b2 as one node. Saves x, the row statistics, norm(x), the copy of W1, the
/// activation's input in 16 bits, its output and the copy of W2.
class LayerNormMlp final : public Module {
 public:
  LayerNormMlp(Build& build, const std::string& name, const LayerConfig& config);
  Variable forward(Runtime& runtime, const Variable& x) override;

 private:
  std::string name_;
  ActivationCore activation_;
  NormCore norm_;
  LinearCore fc1_;
  LinearCore fc2_;
};

}  // namespace fp8lab

#pragma once

#include <string>

#include "nn/cores/linear_core.h"
#include "nn/cores/norm_core.h"
#include "nn/module.h"

namespace fp8lab {

/// y = norm(x) W^T + b as one node. Saves x, the row statistics, norm(x) (column-wise) and the quantized copy of W.
class LayerNormLinear final : public Module {
 public:
  LayerNormLinear(Build& build, const std::string& name, NormKind norm, const LinearShape& shape)
      : LayerNormLinear(build, name, norm, shape, shape.bias) {}
  /// `norm_bias`: a LayerNorm has a beta, whether the product has a bias or not.
  LayerNormLinear(Build& build, const std::string& name, NormKind norm, const LinearShape& shape, bool norm_bias)
      : norm_(build, name + ".norm", norm, shape.in, norm_bias), core_(build, name, shape) {}
  Variable forward(Runtime& runtime, const Variable& x) override;

 private:
  NormCore norm_;
  LinearCore core_;
};

}  // namespace fp8lab

#pragma once

#include <memory>
#include <string>

#include "autograd/node.h"
#include "nn/build.h"
#include "nn/cores/operand.h"
#include "nn/layer_config.h"
#include "ops/norm.h"

namespace fp8lab {

/// LayerNorm or RMSNorm with its parameters. The module saves x and the row statistics for backward.
class NormCore {
 public:
  /// `bias`: a LayerNorm has a beta; RMSNorm never has one.
  NormCore(Build& build, const std::string& name, NormKind kind, std::int64_t columns, bool bias);

  struct Forward {
    Operand y;
    Tensor mean;  ///< absent for RMSNorm
    Tensor rstd;
  };
  Forward forward(Runtime& runtime, const Tensor& x, const OperandRequest& request);

  struct Saved {
    Tensor x;
    Tensor mean;  ///< absent for RMSNorm
    Tensor rstd;
  };
  /// Returns the gradient of x; accumulates the gradients of the parameters.
  Tensor backward(Runtime& runtime, const Tensor& grad_y, const Saved& saved);

  bool has_mean() const { return kind_ == NormKind::kLayerNorm; }

 private:
  std::string name_;
  NormKind kind_;
  std::unique_ptr<Parameter> gamma_;
  std::unique_ptr<Parameter> beta_;  ///< null if the norm has none
};

}  // namespace fp8lab

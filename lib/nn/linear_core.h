#pragma once

#include <memory>
#include <string>

#include "autograd/node.h"
#include "nn/build.h"
#include "nn/operand.h"
#include "nn/role_scales.h"

namespace fp8lab {

struct LinearShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool bias = true;
};

/// y = x W^T + b with weight [out, in] and its three products under a recipe: forward reads x and W row-wise, the input's gradient reads
/// dY row-wise and W column-wise, the weight's gradient dY and x column-wise. Every module with a matrix product has one
/// per product; what to save, and how, is the module's business.
class LinearCore {
 public:
  LinearCore(Build& build, const std::string& name, const LinearShape& shape);
  LinearCore(const LinearCore&) = delete;
  LinearCore& operator=(const LinearCore&) = delete;

  struct Forward {
    Tensor y;
    Operand x;       ///< the half that backward needs
    Operand weight;  ///< a quantized copy with both halves, or the parameter itself
  };
  Forward forward(Runtime& runtime, const Tensor& x);

  /// Returns the gradient of x; the parameters take theirs. `x` and `weight` are read column-wise.
  Tensor backward(Runtime& runtime, Tensor grad_y, const OperandView& x, const OperandView& weight);

  const std::string& name() const { return name_; }

 private:
  Operand quantize_role(Runtime& runtime, const RoleScales& scales, int role, const Tensor& value);

  std::string name_;
  const Recipe& recipe_;
  std::unique_ptr<Parameter> weight_;
  std::unique_ptr<Parameter> bias_;
  RoleScales forward_scales_;
  RoleScales backward_scales_;
};

}  // namespace fp8lab

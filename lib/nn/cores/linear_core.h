#pragma once

#include <memory>
#include <optional>
#include <string>

#include "autograd/node.h"
#include "nn/build.h"
#include "nn/cores/operand.h"
#include "nn/cores/role_scales.h"

namespace fp8lab {

struct LinearShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
  bool bias = true;
};

/// y = x W^T + b with weight [out, in], and its three products under a recipe: forward reads x and W row-wise, the
/// gradient of x reads dY row-wise and W column-wise, the gradient of W reads dY and x column-wise. Every module has
/// one LinearCore for each linear layer in it. The module decides what to save, and how.
class LinearCore {
 public:
  LinearCore(Build& build, const std::string& name, const LinearShape& shape);
  LinearCore(const LinearCore&) = delete;
  LinearCore& operator=(const LinearCore&) = delete;

  struct Forward {
    Tensor y;
    Operand x;  ///< the orientation that backward needs
    /// The weight quantized for this pass; absent if the parameter itself was read.
    std::optional<QuantizedTensor> copy;
  };
  /// Begins a pass, before its input is made. Returns a request to the operation that makes the input: if the scale is
  /// known, to cast the input for this product without storing it; if the scale follows from its amax, to measure it;
  /// nothing if the input is not cast, or is cast in blocks along both rows and columns.
  OperandRequest begin_forward(Runtime& runtime);
  /// `x` is as begin_forward() requested, or in high precision. High-precision input that is cast here is freed with
  /// `x`.
  Forward forward(Runtime& runtime, Operand x);

  /// True if backward() uses the amax of `grad_y`.
  bool measures_gradient() const;
  /// Returns the gradient of x; accumulates the gradients of the parameters. `grad_y` is in high precision, with or
  /// without its amax. Entry `x` of `saved` is forward's operand. Entry `weight` is forward's copy of the weight; if it
  /// is empty the parameter itself is read, so that a module without a copy keeps nothing alive.
  Tensor backward(Runtime& runtime, Operand grad_y, Restored& saved, std::size_t x, std::size_t weight);

  const std::string& name() const { return name_; }

 private:
  /// The weight for forward, read row-wise. Quantized into `copy` unless the parameter itself can be read.
  OperandView weight_rowwise(Runtime& runtime, std::optional<QuantizedTensor>& copy);
  OperandView weight_columnwise(Runtime& runtime, Restored& saved, std::size_t entry);
  /// Makes the column-wise orientation of an eight-bit weight that was gathered row-wise.
  void need_columnwise(Runtime& runtime);
  Quantizer quantizer(Runtime& runtime, const RoleScales& scales, int role) const;
  bool measures(const QuantFormat& format) const;
  Operand quantize_role(Runtime& runtime, const RoleScales& scales, int role, Operand stored) const;

  std::string name_;
  const Recipe& recipe_;
  bool fused_quantize_;
  RoleScales forward_scales_;
  RoleScales backward_scales_;
  std::unique_ptr<Parameter> weight_;
  std::unique_ptr<Parameter> bias_;
};

}  // namespace fp8lab

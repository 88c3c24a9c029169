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

/// y = x W^T + b with weight [out, in] and its three products under a recipe: forward reads x and W row-wise, the
/// input's gradient reads dY row-wise and W column-wise, the weight's gradient dY and x column-wise. Every module with
/// a matrix product has one per product; what to save, and how, is the module's business.
class LinearCore {
 public:
  LinearCore(Build& build, const std::string& name, const LinearShape& shape);
  LinearCore(const LinearCore&) = delete;
  LinearCore& operator=(const LinearCore&) = delete;

  struct Forward {
    Tensor y;
    Operand x;  ///< the orientation that backward needs
    std::optional<QuantizedTensor>
        copy;  ///< of the weight, quantized for this pass; absent where the parameter itself was read
  };
  /// Begins a pass, before its input is made. Asks whoever makes that to cast it for this product without storing it,
  /// where the scale is known; to measure it, where the scale follows from its amax; and for nothing where nothing is
  /// cast, or in blocks along both sides.
  OperandRequest begin_forward(Runtime& runtime);
  /// `x` as begin_forward() asked for it, or stored; a stored one that is cast here goes with it.
  Forward forward(Runtime& runtime, Operand x);

  /// Whether backward() has use for the amax of `grad_y`.
  bool measures_gradient() const;
  /// Returns the gradient of x; the parameters take theirs. `grad_y` is stored, measured or not. Entry `x` of `saved`
  /// is the operand of forward, entry `weight` its copy of the weight, or nothing: then the parameter itself is read,
  /// so that what saves nothing for it keeps nothing alive.
  Tensor backward(Runtime& runtime, Operand grad_y, Restored& saved, std::size_t x, std::size_t weight);

  const std::string& name() const { return name_; }

 private:
  /// The weight for forward, along its rows; made into `copy` unless the parameter itself serves.
  OperandView weight_rowwise(Runtime& runtime, std::optional<QuantizedTensor>& copy);
  OperandView weight_columnwise(Runtime& runtime, Restored& saved, std::size_t entry);
  /// Transposes an eight-bit weight that was gathered along its rows and is to be read along its columns.
  void need_columnwise(Runtime& runtime);
  /// Gives an eight-bit weight this module's own quantizer, which knows nothing of shards.
  void replace_quantizer(Runtime& runtime);
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

#include "nn/activation_core.h"

namespace fp8lab {

Operand ActivationCore::forward(Runtime& runtime, const Tensor& x, const OperandCast& cast) const {
  if (cast) return {.plain = {}, .quantized = activation_quantize(runtime.device, kind_, x, *cast)};
  return {.plain = activation_forward(runtime.device, kind_, x, runtime.workspace(name_)), .quantized = {}};
}

Tensor ActivationCore::backward(Runtime& runtime, const Tensor& grad_y, const Tensor& x) const {
  return activation_backward(runtime.device, kind_, grad_y, x, runtime.workspace(name_));
}

}  // namespace fp8lab

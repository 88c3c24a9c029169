#include "nn/cores/activation_core.h"

namespace fp8lab {

Operand ActivationCore::forward(Runtime& runtime, const Tensor& x, const OperandRequest& request) const {
  Device& device = runtime.device;
  if (request.cast) return {.quantized = activation_quantize(device, activation_, x, *request.cast)};
  Operand made;
  if (request.measure) made.amax = allocate_amax(device);
  made.plain = activation_forward(device, activation_, x, runtime.workspace(name_), made.amax);
  return made;
}

Operand ActivationCore::backward(Runtime& runtime, const Tensor& grad_y, const Tensor& x, bool measure) const {
  Operand made;
  if (measure) made.amax = allocate_amax(runtime.device);
  made.plain = activation_backward(runtime.device, activation_, grad_y, x, runtime.workspace(name_), made.amax);
  return made;
}

}  // namespace fp8lab

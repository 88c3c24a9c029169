#pragma once

#include "backend/device.h"

namespace fp8lab {

/// gelu: [rows, n] -> [rows, n]; swiglu: [rows, 2n] (gate | up) -> [rows, n].
Tensor activation_forward(Device& device, ActivationKind kind, const Tensor& x, HolderId holder);
Tensor activation_backward(Device& device, ActivationKind kind, const Tensor& grad_y, const Tensor& x, HolderId holder);

}  // namespace fp8lab

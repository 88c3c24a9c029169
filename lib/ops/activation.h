#pragma once

#include "backend/device.h"
#include "ops/quantize.h"

namespace fp8lab {

/// gelu: [rows, n] -> [rows, n]; swiglu: [rows, 2n] (gate | up) -> [rows, n]. `amax`: of allocate_amax(); where given,
/// becomes that of the result as it is stored.
Tensor activation_forward(Device& device, ActivationKind kind, const Tensor& x, HolderId holder,
                          const Tensor& amax = {});
/// Quantizes the result, which would have x's type, without storing it; `quantizer` is one that casts_unstored().
QuantizedTensor activation_quantize(Device& device, ActivationKind kind, const Tensor& x, const Quantizer& quantizer);
Tensor activation_backward(Device& device, ActivationKind kind, const Tensor& grad_y, const Tensor& x, HolderId holder,
                           const Tensor& amax = {});

}  // namespace fp8lab

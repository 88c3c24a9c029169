#pragma once

#include "backend/device.h"
#include "ops/quantize.h"

namespace fp8lab {

/// gelu: [rows, n] -> [rows, n]; swiglu: [rows, 2n] (gate | up) -> [rows, n]. `amax`: a tensor of allocate_amax(); if
/// given, it receives the amax of the result as stored.
Tensor activation_forward(Device& device, const Activation& activation, const Tensor& x, HolderId holder,
                          const Tensor& amax = {});
/// Quantizes the result, which would have x's type, without storing it; casts_unstored() must hold for `quantizer`.
QuantizedTensor activation_quantize(Device& device, const Activation& activation, const Tensor& x,
                                    const Quantizer& quantizer);
Tensor activation_backward(Device& device, const Activation& activation, const Tensor& grad_y, const Tensor& x,
                           HolderId holder, const Tensor& amax = {});

}  // namespace fp8lab

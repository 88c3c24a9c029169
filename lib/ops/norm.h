#pragma once

#include "backend/device.h"
#include "ops/quantize.h"

namespace fp8lab {

struct NormOutputs {
  Tensor y;
  Tensor mean;  ///< f32 [rows, 1]; absent for RMSNorm
  Tensor rstd;  ///< f32 [rows, 1]
};

struct NormInputs {
  NormKind kind = NormKind::kLayerNorm;
  Tensor x;
  Tensor gamma;  ///< [cols]
  Tensor beta;   ///< [cols]; absent for RMSNorm, and for a LayerNorm without a bias
  float epsilon = 1e-5f;
  HolderId y_holder = 0;
  HolderId statistics_holder = 0;
  Tensor amax{};  ///< a tensor of allocate_amax(); if given, receives the amax of y as stored
};
NormOutputs norm_forward(Device& device, const NormInputs& inputs);

struct NormQuantizedOutputs {
  QuantizedTensor y;
  Tensor mean;
  Tensor rstd;
};
/// Quantizes y without storing it. casts_unstored() must hold for `quantizer`; inputs.y_holder and inputs.amax are
/// unused.
NormQuantizedOutputs norm_quantize(Device& device, const NormInputs& inputs, const Quantizer& quantizer);

struct NormGradients {
  Tensor x;
  Tensor gamma;
  Tensor beta;  ///< absent if the norm has none
};

struct NormBackwardInputs {
  NormKind kind = NormKind::kLayerNorm;
  Tensor grad_y;
  Tensor x;
  Tensor gamma;
  Tensor mean;
  Tensor rstd;
  bool has_beta = true;  ///< whether a LayerNorm has a beta
  HolderId grad_x_holder = 0;
  HolderId grad_gamma_holder = 0;
  HolderId grad_beta_holder = 0;
};
NormGradients norm_backward(Device& device, const NormBackwardInputs& inputs);

}  // namespace fp8lab

#pragma once

#include <cstdint>

#include "backend/cuda/quantize/device/scale_rule.h"
#include "core/float8.h"

namespace fp8lab::cuda {

/// The E8M0 scale of a block whose largest magnitude has the bits `amax`.
__device__ inline std::uint8_t e8m0_scale(const ScaleRule& rule, std::uint32_t amax) {
  const float value = float_from_bits(amax);
  return rule.kind == ScaleKind::kE8M0Floor ? e8m0_floor(value, rule.emax) : e8m0_rceil(value, rule.fp8_max);
}

/// The factor by which such a block is multiplied if its scale is a float; its inverse is what is stored.
__device__ inline float float_scale(const ScaleRule& rule, std::uint32_t amax) {
  return fp8lab::scale_from_amax(float_from_bits(amax), rule.fp8_max, rule.epsilon,
                                 rule.kind == ScaleKind::kF32PowerOfTwo, rule.largest);
}

/// The scale of a full tensor: the given scale or, without it, the scale that follows from the measured amax.
__device__ inline float tensor_scale(const float* scale, const float* measured, const ScaleRule& rule) {
  return scale != nullptr ? *scale : float_scale(rule, float_bits(*measured));
}

/// 1 / scale; if `scale` is NaN, the same NaN made quiet, as on the host.
__device__ inline float inverse_scale(float scale) {
  return scale == scale ? 1.0f / scale : float_from_bits(float_bits(scale) | kFloatQuietNanBits);
}

}  // namespace fp8lab::cuda

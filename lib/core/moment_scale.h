#pragma once

#include "core/dtype.h"
#include "core/float_bits.h"

// Scales of an optimizer's moments in f16 and e4m3: value = element * scale, one scale for a tensor.
namespace fp8lab {

/// The element that a tensor's largest magnitude becomes; 0 for types that need no scale. Half of what f16 holds, so
/// that rounding never overflows.
F8_HOST_DEVICE constexpr float moment_limit(DType dtype) {
  return dtype == DType::kF16 ? 65504.0f / 2.0f : dtype == DType::kE4M3 ? 448.0f : 0.0f;
}

/// `absmax` is the largest finite magnitude. Zeros get 1: their quotient would be 0, and dividing by it NaN. Never
/// subnormal, so that dividing by it cannot overflow.
F8_HOST_DEVICE constexpr float moment_scale(float absmax, DType dtype) {
  if (!(absmax > 0.0f)) return 1.0f;
  const float scale = absmax / moment_limit(dtype);
  return scale < 0x1p-126f ? 0x1p-126f : scale;
}

}  // namespace fp8lab

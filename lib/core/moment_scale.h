#pragma once

#include "core/dtype.h"
#include "core/float_bits.h"

// Scales of an optimizer's moments in f16 and e4m3: value = element * scale, with one scale for a tensor.
namespace fp8lab {

/// The element that a tensor's largest magnitude is mapped to; 0 for types that need no scale. For f16 it is half of
/// the largest number, so that rounding never overflows.
F8_HOST_DEVICE constexpr float moment_limit(DType dtype) {
  return dtype == DType::kF16 ? 65504.0f / 2.0f : dtype == DType::kE4M3 ? 448.0f : 0.0f;
}

/// The scale of a tensor whose largest finite magnitude is `absmax`. Zeros give 1, because their quotient would be 0
/// and dividing by it NaN. The scale is never subnormal, so dividing by it cannot overflow.
F8_HOST_DEVICE constexpr float moment_scale(float absmax, DType dtype) {
  if (!(absmax > 0.0f)) return 1.0f;
  const float scale = absmax / moment_limit(dtype);
  return scale < 0x1p-126f ? 0x1p-126f : scale;
}

}  // namespace fp8lab

#pragma once

#include <cstdint>

#include "core/float_bits.h"

namespace fp8lab {

/// Storage types: raw bits, no arithmetic. Compute in float and convert at the edges.
struct BFloat16 {
  std::uint16_t bits;
};
/// IEEE binary16.
struct Half {
  static constexpr int kMantissaBits = 10;
  static constexpr int kBias = 15;
  static constexpr float kMinNormal = 0x1p-14f;

  std::uint16_t bits;
};

/// Exact. A NaN keeps its sign and payload.
F8_HOST_DEVICE constexpr float bf16_to_f32(BFloat16 x) {
  return float_from_bits(static_cast<std::uint32_t>(x.bits) << 16);
}

/// Rounds to nearest even; overflow gives Inf; every NaN becomes the quiet NaN of its sign (0x7FC0, 0xFFC0).
F8_HOST_DEVICE constexpr BFloat16 f32_to_bf16(float x) {
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = ((bits >> 16) & 0x8000u) | (kFloatQuietNanBits >> 16);
  const bool is_nan = (bits & kFloatMagnitudeMask) > kFloatInfinityBits;
  return {static_cast<std::uint16_t>(is_nan ? nan : rounded)};
}

/// Rounds x to a number of bf16: of its two neighbours to the one with the larger magnitude if `random`, of 32 uniform
/// bits, is among the share (x - smaller) / (larger - smaller) of them, exactly. So the mean over `random` is x.
/// Numbers of bf16, infinities and NaNs stay as they are; what lies beyond the largest finite number becomes that
/// number.
F8_HOST_DEVICE constexpr float stochastic_bf16(float x, std::uint32_t random) {
  constexpr std::uint32_t kKept = 0xFFFF0000u, kLargest = 0x7F7F0000u;
  const std::uint32_t bits = float_bits(x), magnitude = bits & kFloatMagnitudeMask;
  if (magnitude >= kFloatInfinityBits) return x;
  const std::uint32_t rounded = (magnitude + (random >> 16)) & kKept;
  const std::uint32_t sign = bits & ~kFloatMagnitudeMask;
  return float_from_bits(sign | (rounded < kLargest ? rounded : kLargest));
}

/// Exact, subnormals included. A NaN keeps its sign and payload.
F8_HOST_DEVICE constexpr float f16_to_f32(Half x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t fields = x.bits & 0x7FFFu;
  const std::uint32_t special = less_mask(0x7BFFu, fields) & kFloatInfinityBits;
  return float_from_bits(sign | widened_fields<Half>(fields) | special);
}

/// Rounds to nearest even; overflow (from 65520) gives Inf; every NaN becomes the quiet NaN of its sign (0x7E00,
/// 0xFE00).
F8_HOST_DEVICE constexpr Half f32_to_f16(float x) {
  // 65520 is the tie that rounds up to Inf. The fields of Inf follow the fields of the largest finite number.
  constexpr std::uint32_t kOverflowBits = float_bits(65520.0f);
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t magnitude = bits & kFloatMagnitudeMask;
  const std::uint32_t clamped = magnitude < kOverflowBits ? magnitude : kOverflowBits;
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t nan = less_mask(kFloatInfinityBits, magnitude) & 0x7E00u;
  return {static_cast<std::uint16_t>(sign | nearest_fields<Half>(clamped) | nan)};
}

}  // namespace fp8lab

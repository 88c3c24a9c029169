#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace fp8lab {

/// Storage types: raw bits, no arithmetic. Compute in float and convert at the edges.
struct BFloat16 {
  std::uint16_t bits;
};
/// IEEE binary16.
struct Half {
  std::uint16_t bits;
};

/// Exact; a NaN keeps its sign and payload.
F8_HOST_DEVICE constexpr float bf16_to_f32(BFloat16 x) {
  return float_from_bits(static_cast<std::uint32_t>(x.bits) << 16);
}

/// Round to nearest even, overflow to Inf; every NaN becomes the quiet one of its sign (0x7FC0, 0xFFC0).
F8_HOST_DEVICE constexpr BFloat16 f32_to_bf16(float x) {
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t nan = ((bits & kFloatSignMask) | kFloatQuietNanBits) >> 16;
  const bool is_nan = (bits & kFloatMagnitudeMask) > kFloatInfinityBits;
  return {static_cast<std::uint16_t>(is_nan ? nan : rounded)};
}

/// Exact, subnormals included; a NaN keeps its sign and payload.
F8_HOST_DEVICE constexpr float f16_to_f32(Half x) {
  constexpr std::uint32_t kRebias = (127u - 15u) << 23;
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
  const std::uint32_t shifted = static_cast<std::uint32_t>(x.bits & 0x7FFFu) << 13;
  const std::uint32_t normal = shifted + kRebias;
  // A subnormal read as 1.m * 2^-14 is too large by exactly 2^-14.
  const std::uint32_t subnormal = float_bits(float_from_bits(normal + (1u << 23)) - 0x1p-14f);
  const std::uint32_t special = shifted | kFloatInfinityBits;
  const std::uint32_t finite = shifted < (1u << 23) ? subnormal : normal;
  return float_from_bits(sign | (shifted < (31u << 23) ? finite : special));
}

/// Round to nearest even, overflow (from 65520) to Inf; every NaN becomes the quiet one of its sign (0x7E00, 0xFE00).
F8_HOST_DEVICE constexpr Half f32_to_f16(float x) {
  constexpr std::uint32_t kRebias = (127u - 15u) << 23;
  constexpr float kOverflow = 65520.0f;
  // Its ulp is 2^-24, the subnormal quantum, so adding it makes the FPU round to that quantum, ties to even.
  constexpr float kAligner = 0.5f;
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t magnitude = bits & kFloatMagnitudeMask;
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t limited = magnitude < float_bits(kOverflow) ? magnitude : float_bits(kOverflow);
  const std::uint32_t normal = (limited - kRebias + 0xFFFu + ((limited >> 13) & 1u)) >> 13;
  const std::uint32_t subnormal = float_bits(float_from_bits(limited) + kAligner) - float_bits(kAligner);
  const std::uint32_t rounded = limited < float_bits(0x1p-14f) ? subnormal : normal;
  return {static_cast<std::uint16_t>(sign | (magnitude > kFloatInfinityBits ? 0x7E00u : rounded))};
}

}  // namespace fp8lab

#pragma once

#include <cstdint>

#include "core/float_bits.h"

namespace fp8lab {

// E8M0 is the block scale of the OCP microscaling formats: byte b stands for 2^(b - 127), and 255 for NaN. The format
// has no zero, no infinity and no sign. Hazard: under flush-to-zero some blocks would clip at half their range, so
// these functions must never be built with it.

inline constexpr std::uint8_t kE8M0Nan = 255;

/// Block scale rounded up, so that amax / 2^(byte - 127) <= fp8_max and nothing clips: the smallest power of two at or
/// above the float product amax * (1 / fp8_max), both operations rounded to nearest. Inf and NaN give 255 (a block of
/// NaNs, as torchao does; Transformer Engine gives 254 for Inf), zero gives 0. Requires amax >= 0 or NaN.
///
/// In exact arithmetic the rule is byte = max(0, E - emax + (F > 0x600000)) with amax's exponent field E and fraction
/// F. The float product differs from it at one amax per format, at which a subnormal product loses its last bit:
/// 0x04600001 for E4M3 and 0x07E00001 for E5M2 give 0 here and 1 there, which clips that amax by one part in 14
/// million.
F8_HOST_DEVICE constexpr std::uint8_t e8m0_rceil(float amax, float fp8_max) {
  const std::uint32_t ratio = float_bits(amax * (1.0f / fp8_max)) & kFloatMagnitudeMask;
  // Byte 0 is 2^-127, which as a float is the subnormal 0x00400000.
  const std::uint32_t above =
      ratio < (1u << 23) ? (ratio > 0x00400000u ? 1u : 0u) : ((ratio & 0x007FFFFFu) != 0 ? 1u : 0u);
  return ratio >= kFloatInfinityBits ? kE8M0Nan : static_cast<std::uint8_t>((ratio >> 23) + above);
}

/// Block scale rounded down (OCP MX specification, section 6.3): the largest power of two at or below amax, over the
/// element format's largest power of two 2^emax. Scaled values reach almost 2 * 2^emax and saturate. Inf and NaN give
/// 255, zero gives 0. Requires amax >= 0 or NaN.
F8_HOST_DEVICE constexpr std::uint8_t e8m0_floor(float amax, int emax) {
  const int exponent = static_cast<int>((float_bits(amax) & kFloatMagnitudeMask) >> 23);
  const int byte = exponent > emax ? exponent - emax : 0;
  return exponent == 255 ? kE8M0Nan : static_cast<std::uint8_t>(byte);
}

/// 2^(byte - 127), exact: byte 0 is the subnormal 2^-127, byte 255 a NaN.
F8_HOST_DEVICE constexpr float e8m0_to_f32(std::uint8_t byte) {
  const std::uint32_t normal = static_cast<std::uint32_t>(byte) << 23;
  return float_from_bits(byte == kE8M0Nan ? kFloatQuietNanBits : byte == 0 ? 0x00400000u : normal);
}

/// The factor by which a block is multiplied before encoding: 2^(127 - byte), exact (2^-127 for byte 254), NaN for byte
/// 255.
F8_HOST_DEVICE constexpr float e8m0_multiplier(std::uint8_t byte) {
  return e8m0_to_f32(byte == kE8M0Nan ? kE8M0Nan : static_cast<std::uint8_t>(254 - byte));
}

}  // namespace fp8lab

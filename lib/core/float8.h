#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/e8m0.h"
#include "core/float16.h"
#include "core/float_bits.h"

/// FP8 conversions and scales. This header, with what it includes, is shared by host and device code.
///
/// Encoding follows CUDA's SATFINITE mode bit for bit: round to nearest even; finite overflow and infinities saturate
/// to the largest finite number of their sign; every NaN becomes 0x7F; -0 stays -0. The FPU must round to nearest and
/// must not flush subnormals.
///
/// The project has one scaling rule, with this order of operations:
///   scale     = scale_from_amax(amax, ...)        fp8_max / max(amax, epsilon), one float division
///   code      = encode(x * scale)                 one float multiplication
///   scale_inv = 1 / scale                         one float division, stored with the quantized data
///   value     = decode(code) * scale_inv          one float multiplication
/// Other orders, such as x / scale_inv, give other data at ties. Microscaling blocks follow the same rule with scale =
/// e8m0_multiplier(byte) and scale_inv = e8m0_to_f32(byte), which are exact.
namespace fp8lab {

/// 1 sign, 4 exponent, 3 mantissa bits; no infinity, NaN 0x7F and 0xFF only (the "fn" variant).
struct E4M3 {
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  static constexpr bool kHasInfinity = false;
  static constexpr std::uint8_t kMaxCode = 0x7E;
  static constexpr float kMax = 448.0f;
  static constexpr float kMinNormal = 0x1p-6f;
  static constexpr float kMinSubnormal = 0x1p-9f;
  /// Exponent of the largest power of two.
  static constexpr int kEmax = 8;
};

/// 1 sign, 5 exponent, 2 mantissa bits; infinities 0x7C and 0xFC, NaNs above them.
struct E5M2 {
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr bool kHasInfinity = true;
  static constexpr std::uint8_t kMaxCode = 0x7B;
  static constexpr float kMax = 57344.0f;
  static constexpr float kMinNormal = 0x1p-14f;
  static constexpr float kMinSubnormal = 0x1p-16f;
  static constexpr int kEmax = 15;
};

/// The NaN that encoding produces, in either format.
inline constexpr std::uint8_t kFloat8Nan = 0x7F;

/// float -> FP8, round to nearest even, saturating.
template <class Format>
F8_HOST_DEVICE constexpr std::uint8_t encode(float x) {
  constexpr std::uint32_t kMaxBits = float_bits(Format::kMax);
  const std::uint32_t bits = float_bits(x);
  const std::uint32_t magnitude = bits & kFloatMagnitudeMask;
  const std::uint32_t clamped = magnitude < kMaxBits ? magnitude : kMaxBits;
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t nan_mask = less_mask(kFloatInfinityBits, magnitude);
  return static_cast<std::uint8_t>((sign & ~nan_mask) | nearest_fields<Format>(clamped) | (nan_mask & kFloat8Nan));
}

/// BF16 and FP16 widen to float exactly, so these round only once.
template <class Format>
F8_HOST_DEVICE constexpr std::uint8_t encode(BFloat16 x) {
  return encode<Format>(bf16_to_f32(x));
}
template <class Format>
F8_HOST_DEVICE constexpr std::uint8_t encode(Half x) {
  return encode<Format>(f16_to_f32(x));
}

/// FP8 -> float, exact; a NaN becomes a quiet NaN of its sign.
template <class Format>
F8_HOST_DEVICE constexpr float decode(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t fields = code & 0x7Fu;
  const bool is_infinity = Format::kHasInfinity && fields == Format::kMaxCode + 1u;
  const std::uint32_t special = is_infinity ? kFloatInfinityBits : kFloatQuietNanBits;
  return float_from_bits(sign | widened_fields<Format>(fields) | (less_mask(Format::kMaxCode, fields) & special));
}

F8_HOST_DEVICE constexpr std::uint8_t f32_to_e4m3(float x) { return encode<E4M3>(x); }
F8_HOST_DEVICE constexpr std::uint8_t f32_to_e5m2(float x) { return encode<E5M2>(x); }
F8_HOST_DEVICE constexpr float e4m3_to_f32(std::uint8_t code) { return decode<E4M3>(code); }
F8_HOST_DEVICE constexpr float e5m2_to_f32(std::uint8_t code) { return decode<E5M2>(code); }

/// The upper bound of a block's FP32 scale: the largest number of the type `cast` that is quantized, as in
/// TransformerEngine's block kernels.
F8_HOST_DEVICE constexpr float largest_block_scale(DType cast) {
  return cast == DType::kBF16 ? float_from_bits(0x7F7F0000u) : cast == DType::kF16 ? 65504.0f : kFloatMax;
}

/// The scale of the rule above. An amax that is zero (after epsilon), infinite or NaN gives 1. A quotient that
/// overflows gives `largest`; one below the smallest normal float gives that float, so that its inverse stays finite.
/// `power_of_two` then clears the fraction bits, so the scale only shrinks. Requires amax >= 0 or NaN and epsilon >= 0.
F8_HOST_DEVICE constexpr float scale_from_amax(float amax, float fp8_max, float epsilon, bool power_of_two,
                                               float largest = kFloatMax) {
  const float guarded = amax < epsilon ? epsilon : amax;  // a NaN amax stays NaN
  if (!(guarded > 0.0f && guarded <= kFloatMax)) return 1.0f;
  const float quotient = fp8_max / guarded;
  const float scale = quotient > kFloatMax ? largest : quotient < kFloatMinNormal ? kFloatMinNormal : quotient;
  return power_of_two ? float_from_bits(float_bits(scale) & kFloatInfinityBits) : scale;
}

}  // namespace fp8lab

#pragma once

#include <cstdint>

// Headers that include this one are shared with device code: plain integer and float arithmetic, no library calls.
#if defined(__CUDACC__)
#define F8_HOST_DEVICE __host__ __device__
#else
#define F8_HOST_DEVICE
#endif

namespace fp8lab {

F8_HOST_DEVICE constexpr std::uint32_t float_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
F8_HOST_DEVICE constexpr float float_from_bits(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline constexpr std::uint32_t kFloatMagnitudeMask = 0x7FFFFFFFu;
inline constexpr std::uint32_t kFloatInfinityBits = 0x7F800000u;
inline constexpr std::uint32_t kFloatQuietNanBits = 0x7FC00000u;
inline constexpr float kFloatMax = 0x1.fffffep127f;
inline constexpr float kFloatMinNormal = 0x1p-126f;

/// All ones if a < b, else 0, for a and b below 2^31. Conversions select by masks because g++ compiles several
/// conditions on one value (clamped? NaN? subnormal?) into branches, and then no longer vectorises the loop around
/// them.
F8_HOST_DEVICE constexpr std::uint32_t less_mask(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(a - b) >> 31);
}

// The parts that 16-bit and 8-bit formats share. A Layout has kMantissaBits, kBias and kMinNormal.

/// Exponent and fraction fields of the Layout value nearest to a finite, non-negative float, ties to even. The exponent
/// is unbounded, so the caller clamps first. Needs the FPU's default rounding and subnormals.
template <class Layout>
F8_HOST_DEVICE constexpr std::uint32_t nearest_fields(std::uint32_t magnitude_bits) {
  constexpr int kDropped = 23 - Layout::kMantissaBits;
  constexpr std::uint32_t kMinNormalBits = float_bits(Layout::kMinNormal);
  // The binade that sets the quantum: the value's own, or the smallest normal binade for subnormals.
  const std::uint32_t own_binade = magnitude_bits & kFloatInfinityBits;
  const std::uint32_t binade = own_binade > kMinNormalBits ? own_binade : kMinNormalBits;
  // A power of two whose ulp is that quantum: adding it makes the FPU round to the quantum, ties to even.
  const std::uint32_t aligner = binade + (static_cast<std::uint32_t>(kDropped) << 23);
  const std::uint32_t quanta = float_bits(float_from_bits(magnitude_bits) + float_from_bits(aligner)) - aligner;
  return quanta + ((binade - kMinNormalBits) >> kDropped);
}

/// Bits of the float whose exponent and fraction fields in Layout are `fields`. Special 8-bit values are read as
/// finite.
template <class Layout>
F8_HOST_DEVICE constexpr std::uint32_t widened_fields(std::uint32_t fields) {
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - Layout::kBias) << 23;
  const std::uint32_t subnormal_mask = less_mask(fields, 1u << Layout::kMantissaBits);
  const std::uint32_t normal = (fields << (23 - Layout::kMantissaBits)) + kRebias;
  // A subnormal read with an implicit leading one is too large by exactly the smallest normal.
  const float with_leading_one = float_from_bits(normal + (subnormal_mask & (1u << 23)));
  const float excess = float_from_bits(subnormal_mask & float_bits(Layout::kMinNormal));
  return float_bits(with_leading_one - excess);
}

}  // namespace fp8lab

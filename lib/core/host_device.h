#pragma once

#include <cstdint>

// The headers that include this one are shared with device code: plain integer and float arithmetic, no library calls.
#if defined(__CUDACC__)
#define F8_HOST_DEVICE __host__ __device__
#else
#define F8_HOST_DEVICE
#endif

namespace fp8lab {

F8_HOST_DEVICE constexpr std::uint32_t float_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
F8_HOST_DEVICE constexpr float float_from_bits(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline constexpr std::uint32_t kFloatSignMask = 0x80000000u;
inline constexpr std::uint32_t kFloatMagnitudeMask = 0x7FFFFFFFu;
inline constexpr std::uint32_t kFloatInfinityBits = 0x7F800000u;
inline constexpr std::uint32_t kFloatQuietNanBits = 0x7FC00000u;
inline constexpr float kFloatMax = 0x1.fffffep127f;

}  // namespace fp8lab

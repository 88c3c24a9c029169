#pragma once

#include <cstdint>

#include "core/float_bits.h"

// Elementary functions from correctly rounded operations alone, so that every machine, every vector width and every card (compiled
// without contraction) computes the same bits; libm's differ between versions and processors, and loops around them are not vectorised.
namespace fp8lab {

/// exp(x), within 2 ulp where the result is normal; subnormal results too, 0 below -105, Inf above 89, NaN for NaN.
F8_HOST_DEVICE inline float exponential(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e400p-1f;  // 15 bits: its product with |n| < 2^9 is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  constexpr float kRounder = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits

  float clamped = x < -105.0f ? -105.0f : x;
  clamped = clamped > 89.0f ? 89.0f : clamped;
  const float shifted = clamped * kLog2E + kRounder;
  const float n = shifted - kRounder;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  // Taylor's series; |r| <= ln(2) / 2 leaves 5e-9 relative.
  float series = 1.0f / 5040.0f;
  series = series * r + 1.0f / 720.0f;
  series = series * r + 1.0f / 120.0f;
  series = series * r + 1.0f / 24.0f;
  series = series * r + 1.0f / 6.0f;
  series = series * r + 0.5f;
  series = (series * r) * r + r;
  series = series + 1.0f;
  // 2^n as two factors, since n may lie outside the exponents of a normal float.
  const std::int32_t exponent = static_cast<std::int32_t>(float_bits(shifted) - float_bits(kRounder));
  const std::int32_t half = exponent >> 1;
  const float first = float_from_bits(static_cast<std::uint32_t>(half + 127) << 23);
  const float second = float_from_bits(static_cast<std::uint32_t>(exponent - half + 127) << 23);
  return (series * first) * second;
}

/// 1 / (1 + exp(-x)), within 4 ulp while exp(-x) is finite; exactly 0 below -89.
F8_HOST_DEVICE inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

// GELU in the tanh form, 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), is x * sigmoid(2 u): the same function
// without the cancellation of 1 + tanh(u) where x is negative.
namespace detail {

inline constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308f;
inline constexpr float kGeluCubic = 0.044715f;

/// Beyond 12 the sigmoid is exactly 0 or 1, and the cube could overflow.
F8_HOST_DEVICE inline float gelu_bounded(float x) {
  const float bounded = x < -12.0f ? -12.0f : x;
  return bounded > 12.0f ? 12.0f : bounded;
}

}  // namespace detail

/// gelu(x) / x.
F8_HOST_DEVICE inline float gelu_gate(float x) {
  const float t = detail::gelu_bounded(x);
  return sigmoid(detail::kTwiceSqrtTwoOverPi * (t + detail::kGeluCubic * t * t * t));
}
/// The derivative of gelu.
F8_HOST_DEVICE inline float gelu_slope(float x) {
  const float t = detail::gelu_bounded(x);
  const float gate = gelu_gate(x);
  return gate + t * gate * (1.0f - gate) * (detail::kTwiceSqrtTwoOverPi * (1.0f + 3.0f * detail::kGeluCubic * t * t));
}

/// silu(gate) * up and its derivatives by both, times grad_y.
F8_HOST_DEVICE inline float swiglu(float gate, float up) { return up * (gate * sigmoid(gate)); }
struct SwigluGradient {
  float gate;
  float up;
};
F8_HOST_DEVICE inline SwigluGradient swiglu_gradient(float gate, float up, float grad_y) {
  const float s = sigmoid(gate);
  return {.gate = grad_y * up * (s + gate * s * (1.0f - s)), .up = grad_y * (gate * s)};
}

}  // namespace fp8lab

#pragma once

#include <cstdint>

#include "core/float_bits.h"

// Elementary functions made of only correctly rounded operations, so that every machine, every vector width and every
// GPU (compiled without contraction) computes the same bits. libm is not used: its results differ between versions and
// processors, and loops around its calls are not vectorised.
namespace fp8lab {

namespace detail {

/// max(x, low) that keeps NaN.
F8_HOST_DEVICE inline float at_least(float x, float low) {
#if defined(__CUDA_ARCH__)
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(low));
  return larger;
#else
  return x < low ? low : x;
#endif
}
F8_HOST_DEVICE inline float at_most(float x, float high) {
#if defined(__CUDA_ARCH__)
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(x), "f"(high));
  return smaller;
#else
  return x > high ? high : x;
#endif
}

/// a * b + c for an exact product a * b, so that the single rounding of the GPU's fma gives the host's bits.
F8_HOST_DEVICE inline float add_exact_product(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

inline constexpr float kRounder = 0x1.8p23f;  ///< adding it to x leaves the nearest integer to x in the low bits

/// exp(x) = series * 2^n, with n = float_bits(shifted) - float_bits(kRounder).
struct PartsOfExponential {
  float series;
  float shifted;
};
/// Requires x in [-105, 89] or NaN; the series of a NaN is NaN.
F8_HOST_DEVICE inline PartsOfExponential parts_of_exponential(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e400p-1f;  // 15 bits: its product with |n| < 2^9 is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;
  const float shifted = x * kLog2E + kRounder;
  const float n = shifted - kRounder;
  const float r = add_exact_product(-n, kLn2High, x) - n * kLn2Low;
  // Taylor's series; |r| <= ln(2) / 2 leaves 5e-9 relative.
  float series = 1.0f / 5040.0f;
  series = series * r + 1.0f / 720.0f;
  series = series * r + 1.0f / 120.0f;
  series = series * r + 1.0f / 24.0f;
  series = series * r + 1.0f / 6.0f;
  series = series * r + 0.5f;
  series = (series * r) * r + r;
  return {.series = series + 1.0f, .shifted = shifted};
}

}  // namespace detail

/// exp(x), within 2 ulp if the result is normal. Results may be subnormal; 0 below -105, Inf above 89, NaN for NaN.
F8_HOST_DEVICE inline float exponential(float x) {
  const detail::PartsOfExponential parts =
      detail::parts_of_exponential(detail::at_most(detail::at_least(x, -105.0f), 89.0f));
  // 2^n is applied as two factors, because n may lie outside the exponents of a normal float.
  const std::int32_t exponent = static_cast<std::int32_t>(float_bits(parts.shifted) - float_bits(detail::kRounder));
  const std::int32_t half = exponent >> 1;
  const float first = float_from_bits(static_cast<std::uint32_t>(half + 127) << 23);
  const float second = float_from_bits(static_cast<std::uint32_t>(exponent - half + 127) << 23);
  return (parts.series * first) * second;
}

/// ln(x), within 3 ulp, for a normal x > 0 and Inf; -Inf for 0, NaN below 0 and for NaN.
F8_HOST_DEVICE inline float logarithm(float x) {
  constexpr float kLn2High = 0x1.62e400p-1f, kLn2Low = 0x1.7f7d1cp-20f;  // as in exponential()
  if (!(x > 0.0f)) return x == 0.0f ? float_from_bits(0xFF800000u) : float_from_bits(0x7FC00000u);
  if (x > 0x1.fffffep127f) return x;
  // x = m 2^n with m in [sqrt(1/2), sqrt(2)); ln(m) = 2 artanh(s) with s = (m - 1) / (m + 1), |s| < 0.172. Its series
  // leaves 3e-9 relative.
  const std::uint32_t above = float_bits(x) - 0x3F3504F3u;
  const std::int32_t n = static_cast<std::int32_t>(above) >> 23;
  const float m = float_from_bits((above & 0x007FFFFFu) + 0x3F3504F3u);
  const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
  float series = 1.0f / 9.0f;
  series = series * z + 1.0f / 7.0f;
  series = series * z + 1.0f / 5.0f;
  series = series * z + 1.0f / 3.0f;
  const float of_m = 2.0f * s + 2.0f * s * (z * series);
  const float exponent = static_cast<float>(n);
  return exponent * kLn2High + (of_m + exponent * kLn2Low);
}

namespace detail {

/// 1 / d for d >= 1 or NaN. The GPU's division does the same step from the same estimate, but also checks for operands
/// that cannot occur here.
F8_HOST_DEVICE inline float reciprocal_from_one(float d) {
#if defined(__CUDA_ARCH__)
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(d));
  const float better = __fmaf_rn(estimate, __fmaf_rn(-d, estimate, 1.0f), estimate);
  return d < 0x1p126f ? better : 1.0f / d;
#else
  return 1.0f / d;
#endif
}

/// sigmoid(x). A NaN gives some number, and the caller's product with x makes it NaN again.
F8_HOST_DEVICE inline float sigmoid_of_number(float x) {
  // The argument is bounded below by -64, at which exp no longer changes 1 + exp. So n > -126, and a quarter of exp is
  // computed by adding to the exponent; four times that may be Inf.
  const PartsOfExponential parts = parts_of_exponential(at_most(at_least(-x, -64.0f), 89.0f));
  const float quarter = float_from_bits(float_bits(parts.series) + (float_bits(parts.shifted) << 23) - (2u << 23));
  return reciprocal_from_one(add_exact_product(quarter, 4.0f, 1.0f));
}

}  // namespace detail

/// 1 / (1 + exp(-x)), within 4 ulp while exp(-x) is finite; exactly 0 below -89.
F8_HOST_DEVICE inline float sigmoid(float x) { return x != x ? x : detail::sigmoid_of_number(x); }

// GELU in the tanh form, 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), is computed as x * sigmoid(2 u):
// the same function without the cancellation of 1 + tanh(u) for negative x.
namespace detail {

inline constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308f;
inline constexpr float kGeluCubic = 0.044715f;

/// Bounds x to [-12, 12]: beyond that the sigmoid is exactly 0 or 1, and the cube could overflow.
F8_HOST_DEVICE inline float gelu_bounded(float x) { return at_most(at_least(x, -12.0f), 12.0f); }

}  // namespace detail

/// gelu(x) / x. A NaN gives some number.
F8_HOST_DEVICE inline float gelu_gate(float x) {
  const float t = detail::gelu_bounded(x);
  return detail::sigmoid_of_number(detail::kTwiceSqrtTwoOverPi * (t + detail::kGeluCubic * t * t * t));
}
/// The derivative of gelu.
F8_HOST_DEVICE inline float gelu_slope(float x) {
  const float t = detail::gelu_bounded(x);
  const float gate = gelu_gate(x);
  return gate + t * gate * (1.0f - gate) * (detail::kTwiceSqrtTwoOverPi * (1.0f + 3.0f * detail::kGeluCubic * t * t));
}

/// silu(gate) * up; swiglu_gradient() has its derivatives by gate and up, times grad_y.
F8_HOST_DEVICE inline float swiglu(float gate, float up) { return up * (gate * detail::sigmoid_of_number(gate)); }
struct SwigluGradient {
  float gate;
  float up;
};
F8_HOST_DEVICE inline SwigluGradient swiglu_gradient(float gate, float up, float grad_y) {
  const float s = detail::sigmoid_of_number(gate);
  return {.gate = grad_y * up * (s + gate * s * (1.0f - s)), .up = grad_y * (gate * s)};
}

// A sum of exponentials that cannot overflow, in one pass over its terms. Order: core/sum_order.h.
inline constexpr float kLowestFloat = -0x1.fffffep127f;

/// `sum` is the sum of exp(x - maximum) over some elements, of which `maximum` is the largest. A NaN among them makes
/// `sum` NaN.
struct ExponentialSum {
  float maximum = kLowestFloat;
  float sum = 0.0f;

  /// ln of the sum of exp(x).
  F8_HOST_DEVICE float log_sum() const { return maximum + logarithm(sum); }
  /// The cross-entropy of the element `x`: log_sum() - x, without the rounding of log_sum().
  F8_HOST_DEVICE float loss_of(float x) const { return (maximum - x) + logarithm(sum); }
};

F8_HOST_DEVICE inline ExponentialSum joined(const ExponentialSum& a, const ExponentialSum& b) {
  const float maximum = a.maximum < b.maximum ? b.maximum : a.maximum;
  return {.maximum = maximum,
          .sum = a.sum * exponential(a.maximum - maximum) + b.sum * exponential(b.maximum - maximum)};
}

/// Two sums of exponentials as one, by their logarithms: the logarithm of the sum, and the share of each in it. A sum
/// of nothing, whose logarithm is -Inf, has no share.
struct MergedLogSums {
  float log_sum;
  float share_of_a;
  float share_of_b;
};
F8_HOST_DEVICE inline MergedLogSums merge_log_sums(float a, float b) {
  const float nothing = float_from_bits(0xFF800000u);
  if (b == nothing) return {a, 1.0f, 0.0f};
  if (a == nothing) return {b, 0.0f, 1.0f};
  // Shares follow from the difference of both, because shares by the rounded logarithm of the sum would not add up
  // to 1. A NaN in either makes all three NaN.
  const float larger = a > b ? a : b;
  const float from_a = exponential(a - larger), from_b = exponential(b - larger), sum = from_a + from_b;
  return {larger + logarithm(sum), from_a / sum, from_b / sum};
}

}  // namespace fp8lab

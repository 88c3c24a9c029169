#pragma once

#include <cstdint>

#include "core/float_bits.h"

// Elementary functions made of only correctly rounded operations, so that every machine, every vector width and every
// GPU (compiled without contraction) computes the same bits. Of libm only fma() is used, and only if the instruction
// set has none: libm's other results differ between versions and processors. Hosts compile loops around these functions
// for sets that have it (backend/cpu/vectorized.h).
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

/// a * b + c, rounded once.
F8_HOST_DEVICE inline float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

/// Adding it to x leaves the nearest integer to x, plus kBias, in the low bits.
template <int kBias>
inline constexpr float kRounder = 0x1.8p23f + static_cast<float>(kBias);

/// exp(x) = series * 2^n, with n = float_bits(shifted) - float_bits(kRounder<0>); `shifted` holds n + kBias.
struct PartsOfExponential {
  float series;
  float shifted;
};
/// Requires x in [-105, 89] or NaN; the series of a NaN is NaN.
template <int kBias>
F8_HOST_DEVICE inline PartsOfExponential parts_of_exponential(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e400p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  const float shifted = fused(x, kLog2E, kRounder<kBias>);
  const float n = shifted - kRounder<kBias>;
  const float r = fused(-n, kLn2Low, fused(-n, kLn2High, x));
  // exp(r) = 1 + r + r^2 q(r); the polynomial q leaves 3.1e-9 relative for |r| <= ln(2) / 2, the least that one of its
  // degree can leave.
  float series = 0x1.6a23d4p-10f;
  series = fused(series, r, 0x1.123a20p-7f);
  series = fused(series, r, 0x1.5558f2p-5f);
  series = fused(series, r, 0x1.555492p-3f);
  series = fused(series, r, 0x1.fffffcp-2f);
  return {.series = fused(fused(series, r, 1.0f), r, 1.0f), .shifted = shifted};
}
}  // namespace detail

inline constexpr float kLargestExponent = 64.0f;

/// exp(x) for x <= kLargestExponent, within 2 ulp if the result is normal; for larger x as for that. Results may be
/// subnormal; 0 below -105, NaN for NaN.
F8_HOST_DEVICE inline float exponential(float x) {
  // n is in [-152, 93], so that 2^(n + 32) is normal; the product with 2^-32 rounds subnormals.
  const detail::PartsOfExponential parts =
      detail::parts_of_exponential<127 + 32>(detail::at_most(detail::at_least(x, -105.0f), kLargestExponent));
  return parts.series * float_from_bits(float_bits(parts.shifted) << 23) * 0x1p-32f;
}

/// exp(x) for x <= 0 as a term of a sum whose largest term is 1: exp(-87) for any x below -87. A NaN gives some number.
F8_HOST_DEVICE inline float exponential_term(float x) {
  const detail::PartsOfExponential parts = detail::parts_of_exponential<0>(detail::at_least(x, -87.0f));
  return float_from_bits(float_bits(parts.series) + (float_bits(parts.shifted) << 23));
}

/// ln(x), within 3 ulp, for a normal x > 0 and Inf; -Inf for 0, NaN below 0 and for NaN.
F8_HOST_DEVICE inline float logarithm(float x) {
  constexpr float kLn2High = 0x1.62e400p-1f, kLn2Low = 0x1.7f7d1cp-20f;  // 15 bits, so that products are exact
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

/// 1 / d for d >= 1 or NaN, and below 2^126 if `Near`. The GPU's division does the same step from the same estimate,
/// but also checks for operands that cannot occur here.
template <bool Near>
F8_HOST_DEVICE inline float reciprocal_from_one(float d) {
#if defined(__CUDA_ARCH__)
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(d));
  const float better = __fmaf_rn(estimate, __fmaf_rn(-d, estimate, 1.0f), estimate);
  return Near || d < 0x1p126f ? better : 1.0f / d;
#else
  return 1.0f / d;
#endif
}

/// The largest |x| for which sigmoid_of_number() accepts `Near`.
inline constexpr float kNearForSigmoid = 64.0f;

/// sigmoid(x). A NaN gives some number, and the caller's product with x makes it NaN again. `Near`: |x| is at most
/// kNearForSigmoid. Then x needs no bounds and the reciprocal no check, so a GPU's loop over elements has no branch.
template <bool Near = false>
F8_HOST_DEVICE inline float sigmoid_of_number(float x) {
  // The argument is bounded below by -64, at which exp no longer changes 1 + exp. So n > -126, and a quarter of exp is
  // normal; four times that may be Inf.
  const PartsOfExponential parts = parts_of_exponential<-2>(Near ? -x : at_most(at_least(-x, -64.0f), 89.0f));
  const float quarter = float_from_bits(float_bits(parts.series) + (float_bits(parts.shifted) << 23));
  return reciprocal_from_one<Near>(fused(quarter, 4.0f, 1.0f));
}

}  // namespace detail

/// 1 / (1 + exp(-x)), within 4 ulp while exp(-x) is finite; exactly 0 below -89.
F8_HOST_DEVICE inline float sigmoid(float x) { return x != x ? x : detail::sigmoid_of_number(x); }

// GELU in the tanh form, 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), is computed as x * sigmoid(2 u):
// the same function without the cancellation of 1 + tanh(u) for negative x.
namespace detail {

inline constexpr float kTwiceSqrtTwoOverPi = 1.5957691216057308f;
inline constexpr float kGeluCubic = 0.044715f;

}  // namespace detail

/// The largest |x| for which gelu's functions accept `Near`, as sigmoid_of_number() does.
inline constexpr float kNearForGelu = 8.5f;

/// gelu(x) / x. A NaN gives some number. The cube may overflow: the sigmoid is 0 or 1 long before.
template <bool Near = false>
F8_HOST_DEVICE inline float gelu_gate(float x) {
  return detail::sigmoid_of_number<Near>(
      x * detail::fused(x * x, detail::kTwiceSqrtTwoOverPi * detail::kGeluCubic, detail::kTwiceSqrtTwoOverPi));
}
/// gelu(x) / x, and the derivative of gelu.
struct GeluSlope {
  float gate, slope;
};
template <bool Near = false>
F8_HOST_DEVICE inline GeluSlope gelu_with_slope(float x) {
  // Beyond 12 the gate is exactly 0 or 1, and x^2 could overflow.
  const float t = Near ? x : detail::at_most(detail::at_least(x, -12.0f), 12.0f);
  const float gate = gelu_gate<Near>(t), bend = t * gate * (1.0f - gate);
  const float slope_of_argument =
      detail::fused(t * t, 3.0f * detail::kTwiceSqrtTwoOverPi * detail::kGeluCubic, detail::kTwiceSqrtTwoOverPi);
  return {gate, detail::fused(bend, slope_of_argument, gate)};
}
template <bool Near = false>
F8_HOST_DEVICE inline float gelu_slope(float x) {
  return gelu_with_slope<Near>(x).slope;
}

/// Derivatives by gate and up, times grad_y.
struct GatedGradient {
  float gate;
  float up;
};

// Gated activations. kNear: the largest magnitude of a gate for which they accept `Near`.

/// silu(gate) * up.
struct Swiglu {
  static constexpr float kNear = detail::kNearForSigmoid;

  template <bool Near = false>
  F8_HOST_DEVICE static float value(float gate, float up) {
    return up * (gate * detail::sigmoid_of_number<Near>(gate));
  }
  template <bool Near = false>
  F8_HOST_DEVICE static GatedGradient gradient(float gate, float up, float grad_y) {
    const float s = detail::sigmoid_of_number<Near>(gate);
    const float silu = gate * s;
    return {.gate = grad_y * up * detail::fused(silu, 1.0f - s, s), .up = grad_y * silu};
  }
};

/// g * sigmoid(1.702 g) * (u + 1) with g = min(gate, limit) and u = up clamped to [-limit, limit] (GPT-OSS). A clamped
/// value has the derivative 0; a NaN is no clamped value.
struct ClampedSwiglu {
  static constexpr float kSlope = 1.702f, kNear = 32.0f;
  float limit;

  template <bool Near = false>
  F8_HOST_DEVICE float value(float gate, float up) const {
    const float g = gate_of(gate);
    return (up_of(up) + 1.0f) * (g * detail::sigmoid_of_number<Near>(kSlope * g));
  }
  template <bool Near = false>
  F8_HOST_DEVICE GatedGradient gradient(float gate, float up, float grad_y) const {
    const float g = gate_of(gate), s = detail::sigmoid_of_number<Near>(kSlope * g), swish = g * s;
    const float of_gate = grad_y * (up_of(up) + 1.0f) * detail::fused(kSlope * swish, 1.0f - s, s);
    return {.gate = gate > limit ? 0.0f : of_gate, .up = up > limit || up < -limit ? 0.0f : grad_y * swish};
  }
  F8_HOST_DEVICE float gate_of(float gate) const { return gate > limit ? limit : gate; }
  F8_HOST_DEVICE float up_of(float up) const { return up > limit ? limit : up < -limit ? -limit : up; }
};

/// gelu(gate) * up.
struct Geglu {
  static constexpr float kNear = kNearForGelu;

  template <bool Near = false>
  F8_HOST_DEVICE static float value(float gate, float up) {
    return up * (gate * gelu_gate<Near>(gate));
  }
  template <bool Near = false>
  F8_HOST_DEVICE static GatedGradient gradient(float gate, float up, float grad_y) {
    const GeluSlope of_gate = gelu_with_slope<Near>(gate);
    return {.gate = grad_y * up * of_gate.slope, .up = grad_y * (gate * of_gate.gate)};
  }
};

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

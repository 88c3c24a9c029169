#pragma once

#include <cstdint>

#include "backend/cuda/device/lists.h"
#include "backend/cuda/quantize/cast_target.h"
#include "core/dtype.h"
#include "core/float_bits.h"
#include "core/lerp.h"
#include "core/moment_scale.h"
#include "core/quotient.h"

// Adam's update of one element, and the description of a tensor that a block reads.
namespace fp8lab::cuda {

/// The place of the value that the optimizer updates.
enum class Weight : std::uint8_t {
  kParam,    ///< in the parameter itself
  kMaster,   ///< in an f32 copy, of which the parameter is the rounding
  kParts16,  ///< its upper 16 bits, rounded, in the parameter, its lower 16 bits in the master
};

/// Which body of adam_kernel processes a tensor: that for any strides, that for all types, or the one compiled for its
/// types.
enum class Body : std::uint8_t {
  kStrided,
  kAnyTypes,
  kF32,
  kMaster,
  kRemainder,
  kMasterBf16Moments,
  kEightBits,
  kEightBitsBf16Moments,
  kEightBitsScaledMoments,
};

struct AdamItem {
  std::int64_t end_piece = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::byte* param = nullptr;
  std::byte* grad = nullptr;
  std::byte* exp_avg = nullptr;
  std::byte* exp_avg_sq = nullptr;
  std::byte* master = nullptr;
  float* exp_avg_scale = nullptr;  ///< null if the moment has none
  float* exp_avg_sq_scale = nullptr;
  // Written by adam_measure_kernel: the scales with which the moments were stored, and the bits of the largest finite
  // magnitudes of the new moments.
  float exp_avg_read = 1.0f;
  float exp_avg_sq_read = 1.0f;
  unsigned exp_avg_absmax = 0;
  unsigned exp_avg_sq_absmax = 0;
  Strides param_strides, grad_strides, exp_avg_strides, exp_avg_sq_strides, master_strides;
  TargetItem target;
  std::uint64_t stream = 0;
  std::int64_t first_element = 0;
  DType param_type{}, grad_type{}, exp_avg_type{}, exp_avg_sq_type{};
  Weight weight{};
  Body body{};

  __host__ __device__ bool scaled() const { return exp_avg_scale != nullptr || exp_avg_sq_scale != nullptr; }
};

struct Rule {
  float learning_rate, exp_avg_weight, exp_avg_sq_weight, epsilon, coupled_decay, decoupled_decay;
  double inverse_correction1, inverse_correction2;
  const float* gradient_scale;
  bool stochastic;
  std::uint64_t seed, step;
};

/// Types that are known to a body at compile time.
template <Weight kWeight, DType kParam, DType kGrad, DType kExpAvg, DType kExpAvgSq = kExpAvg, bool kHasTarget = false>
struct Known {
  static constexpr bool kScales = moment_limit(kExpAvg) > 0.0f || moment_limit(kExpAvgSq) > 0.0f;
  static constexpr bool kCasts = kHasTarget;
  static constexpr bool kRoundsAtRandom = false;
  static constexpr int kTogether = kListVectors;
  __device__ static constexpr Weight weight(const AdamItem&) { return kWeight; }
  __device__ static constexpr DType param(const AdamItem&) { return kParam; }
  __device__ static constexpr DType grad(const AdamItem&) { return kGrad; }
  __device__ static constexpr DType exp_avg(const AdamItem&) { return kExpAvg; }
  __device__ static constexpr DType exp_avg_sq(const AdamItem&) { return kExpAvgSq; }
};
struct Asked {
  static constexpr bool kScales = true;
  static constexpr bool kCasts = true;
  static constexpr bool kRoundsAtRandom = true;  ///< if asked to
  static constexpr int kTogether = 1;            // one, since each vector needs the conversions of every type
  __device__ static Weight weight(const AdamItem& item) { return item.weight; }
  __device__ static DType param(const AdamItem& item) { return item.param_type; }
  __device__ static DType grad(const AdamItem& item) { return item.grad_type; }
  __device__ static DType exp_avg(const AdamItem& item) { return item.exp_avg_type; }
  __device__ static DType exp_avg_sq(const AdamItem& item) { return item.exp_avg_sq_type; }
};

/// The f32 value whose upper 16 bits, rounded, are `high` and whose lower 16 bits are `low`.
__device__ __forceinline__ float from_parts16(std::uint16_t high, std::uint16_t low) {
  return __uint_as_float((static_cast<unsigned>(high) - (low >> 15) << 16) | low);
}

struct Parts16 {
  std::uint16_t high;
  std::uint16_t low;
};
__device__ __forceinline__ Parts16 to_parts16(float value) {
  unsigned bits = __float_as_uint(value);
  // Without this, rounding up a NaN's payload could carry into the sign and leave a zero.
  if ((bits & kFloatMagnitudeMask) > kFloatInfinityBits) bits = (bits & ~kFloatMagnitudeMask) | kFloatQuietNanBits;
  return {static_cast<std::uint16_t>((bits >> 16) + (bits >> 15 & 1u)), static_cast<std::uint16_t>(bits)};
}

/// Scales of a tensor that a block keeps in registers.
struct Scales {
  float gradient = 1.0f;
  bool scales_gradient = false;
  float exp_avg_read = 1.0f, exp_avg_sq_read = 1.0f;
  // Inverses are exact enough here: types of moments that have scales have no numbers so small that a quotient could be
  // off.
  double exp_avg_write_inverse = 1.0, exp_avg_sq_write_inverse = 1.0;

  __device__ void read_gradient(const Rule& rule) {
    scales_gradient = rule.gradient_scale != nullptr;
    if (scales_gradient) gradient = *rule.gradient_scale;
  }
};

struct Element1 {
  float p, g, m, v;
};

__device__ __forceinline__ void update_moments(const Rule& rule, Element1& e) {
  const float gradient = e.g + rule.coupled_decay * e.p;
  e.m = fp8lab::lerp(e.m, gradient, rule.exp_avg_weight);
  e.v = fp8lab::lerp(e.v, gradient * gradient, rule.exp_avg_sq_weight);
}

__device__ __forceinline__ void update_param(const Rule& rule, Element1& e) {
  const float mean = quotient(e.m, rule.inverse_correction1);
  const float deviation = sqrtf(quotient(e.v, rule.inverse_correction2));
  e.p = e.p - rule.learning_rate * (mean / (deviation + rule.epsilon) + rule.decoupled_decay * e.p);
}

/// The largest finite magnitudes of a thread's new moments.
struct Absmax {
  unsigned exp_avg = 0;
  unsigned exp_avg_sq = 0;

  __device__ static void raise(unsigned& largest, float value) {
    const unsigned magnitude = __float_as_uint(value) & kFloatMagnitudeMask;
    if (magnitude < kFloatInfinityBits && magnitude > largest) largest = magnitude;
  }
};

/// Multiplies loaded elements by the scales with which they were stored.
template <bool kScales>
__device__ __forceinline__ void apply_read_scales(const AdamItem& item, const Scales& scales, Element1& e) {
  if (scales.scales_gradient) e.g *= scales.gradient;
  if constexpr (!kScales) return;
  if (item.exp_avg_scale != nullptr) e.m *= scales.exp_avg_read;
  if (item.exp_avg_sq_scale != nullptr) e.v *= scales.exp_avg_sq_read;
}

template <bool kScales>
__device__ __forceinline__ void apply_write_scales(const AdamItem& item, const Scales& scales, Element1& e) {
  if constexpr (!kScales) return;
  if (item.exp_avg_scale != nullptr) e.m = quotient(e.m, scales.exp_avg_write_inverse);
  if (item.exp_avg_sq_scale != nullptr) e.v = quotient(e.v, scales.exp_avg_sq_write_inverse);
}

}  // namespace fp8lab::cuda

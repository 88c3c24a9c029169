#pragma once

#include <cstdint>

#include "core/float_bits.h"

namespace fp8lab {

struct PhiloxBlock {
  std::uint32_t words[4];
};

/// Philox4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
F8_HOST_DEVICE constexpr PhiloxBlock philox4x32(PhiloxBlock counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = 0xD2511F53ull * counter.words[0];
    const std::uint64_t product1 = 0xCD9E8D57ull * counter.words[2];
    counter = {
        {static_cast<std::uint32_t>(product1 >> 32) ^ counter.words[1] ^ key0, static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ counter.words[3] ^ key1, static_cast<std::uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

namespace detail {

// nvcc fuses a * b + c into one rounding by default. These functions keep two roundings, as on the host.
F8_HOST_DEVICE inline float rounded_mul(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
F8_HOST_DEVICE inline float mul_add(float a, float b, float c) { return rounded_mul(a, b) + c; }
F8_HOST_DEVICE inline float rounded_sqrt(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}

/// -ln(u) for a positive normal float u <= 1.
F8_HOST_DEVICE inline float minus_log(float u) {
  // u = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const std::uint32_t offset = float_bits(u) - 0x3F3504F3u;
  const int e = static_cast<int>(offset) >> 23;
  const float m = float_from_bits((offset & 0x007FFFFFu) + 0x3F3504F3u);
  // ln m = 2 artanh(s) = 2 (s + s^3/3 + ... + s^9/9); |s| < 0.172 leaves 4e-9 relative.
  const float s = (m - 1.0f) / (m + 1.0f);
  const float s2 = rounded_mul(s, s);
  float series = mul_add(s2, 1.0f / 9.0f, 1.0f / 7.0f);
  series = mul_add(s2, series, 1.0f / 5.0f);
  series = mul_add(s2, series, 1.0f / 3.0f);
  const float tail = rounded_mul(rounded_mul(s2, s), series);
  const float log_m = 2.0f * (s + tail);
  return -mul_add(static_cast<float>(e), 0.693147180559945f, log_m);
}

/// Taylor polynomials for |t| <= pi/4, good to 3e-8.
F8_HOST_DEVICE inline float sin_octant(float t) {
  const float t2 = rounded_mul(t, t);
  float series = mul_add(t2, 1.0f / 362880.0f, -1.0f / 5040.0f);
  series = mul_add(t2, series, 1.0f / 120.0f);
  series = mul_add(t2, series, -1.0f / 6.0f);
  return mul_add(rounded_mul(t2, t), series, t);
}
F8_HOST_DEVICE inline float cos_octant(float t) {
  const float t2 = rounded_mul(t, t);
  float series = mul_add(t2, 1.0f / 40320.0f, -1.0f / 720.0f);
  series = mul_add(t2, series, 1.0f / 24.0f);
  series = mul_add(t2, series, -0.5f);
  return mul_add(t2, series, 1.0f);
}

}  // namespace detail

/// A probability below 1 in 65536ths, rounded up: an event with it happens if 16 random bits are below the result.
F8_HOST_DEVICE constexpr std::uint32_t in_65536ths(float probability) {
  const float scaled = probability * 65536.0f;
  const auto down = static_cast<std::uint32_t>(scaled);
  return down + (static_cast<float>(down) < scaled ? 1u : 0u);
}

/// Random numbers as a pure function of (seed, stream, global element index): a shard draws exactly its slice of what
/// the full tensor would draw, on any number of ranks or threads, on host and device alike.
class CounterRng {
 public:
  F8_HOST_DEVICE constexpr CounterRng(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  /// The words of indices 4 * number ... 4 * number + 3, for loops that want all four.
  F8_HOST_DEVICE constexpr PhiloxBlock block(std::uint64_t number) const {
    const PhiloxBlock counter = {{low(number), high(number), low(stream_), high(stream_)}};
    return philox4x32(counter, low(seed_), high(seed_));
  }

  F8_HOST_DEVICE constexpr std::uint32_t bits(std::uint64_t index) const { return block(index / 4).words[index % 4]; }

  /// 16 bits: the low ones of word w belong to index 2 w, the high ones to 2 w + 1.
  F8_HOST_DEVICE constexpr std::uint32_t half(std::uint64_t index) const {
    return half_of(bits(index / 2), static_cast<unsigned>(index % 2));
  }
  F8_HOST_DEVICE static constexpr std::uint32_t half_of(std::uint32_t word, unsigned high) {
    return word >> (16 * high) & 0xFFFFu;
  }

  /// A value in [0, 1), a multiple of 2^-24.
  F8_HOST_DEVICE constexpr float uniform(std::uint64_t index) const { return to_unit(bits(index)); }

  /// Standard normal by Box and Muller, from the words of the even/odd pair that `index` belongs to; |value| < 5.8.
  /// Uses only correctly rounded operations (+ - * / sqrt), so every machine draws the same bits.
  F8_HOST_DEVICE inline float normal(std::uint64_t index) const {
    const PhiloxBlock drawn = block(index / 4);
    const std::uint64_t pair = index & 2u;
    const std::uint32_t angle = drawn.words[pair + 1];
    const float t = octant_angle(angle);
    // An odd index uses the sine, which is the cosine a quadrant back.
    const std::uint32_t quadrant = ((angle >> 30) - static_cast<std::uint32_t>(index & 1u)) & 3u;
    const bool sine = (quadrant & 1u) != 0;
    return projected(radius(drawn.words[pair]), quadrant, sine ? detail::sin_octant(t) : 0.0f,
                     sine ? 0.0f : detail::cos_octant(t));
  }

  // The parts of normal(), for loops over many values.
  F8_HOST_DEVICE static inline float radius(std::uint32_t word) {
    return detail::rounded_sqrt(2.0f * detail::minus_log(to_positive_unit(word)));
  }
  /// Two bits of the word choose the quadrant, 24 the angle inside it, measured from the quadrant's middle.
  F8_HOST_DEVICE static inline float octant_angle(std::uint32_t word) {
    const std::int32_t offset = static_cast<std::int32_t>((word >> 6) & 0x00FFFFFFu) * 2 + 1 - (1 << 24);
    return detail::rounded_mul(static_cast<float>(offset) * 0x1p-24f, 0.785398163397448f);
  }
  /// The cosine of the angle in its quadrant, times the radius; the sine and the cosine are those in the octant.
  F8_HOST_DEVICE static inline float projected(float radius, std::uint32_t quadrant, float sine, float cosine) {
    const float projection = (quadrant & 1u) != 0 ? sine : cosine;
    const bool negative = quadrant == 1 || quadrant == 2;
    return detail::rounded_mul(radius, negative ? -projection : projection);
  }

  F8_HOST_DEVICE static constexpr float to_unit(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }
  F8_HOST_DEVICE static constexpr float to_positive_unit(std::uint32_t word) {
    return static_cast<float>((word >> 8) + 1u) * 0x1p-24f;
  }

 private:
  F8_HOST_DEVICE static constexpr std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
  F8_HOST_DEVICE static constexpr std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

  std::uint64_t seed_;
  std::uint64_t stream_;
};

}  // namespace fp8lab

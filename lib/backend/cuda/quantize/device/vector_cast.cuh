#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/device/magnitudes.cuh"
#include "backend/cuda/device/vectors.cuh"
#include "core/float16.h"

// Casts of vectors of eight elements to eight bits: they are measured as the bits of their own type, and cast in pairs
// by the GPU's conversion instructions.
namespace fp8lab::cuda {

/// Largest magnitudes of vectors per column, as bits of the type itself, which order like the values; 16-bit types are
/// packed two to a word.
template <DType In>
struct Magnitudes {
  using Source = Vector<In, 8>;
  static constexpr bool kWide = In == DType::kF32;
  std::uint32_t words[Source::kWords];

  __device__ void zero() {
#pragma unroll
    for (int i = 0; i < Source::kWords; ++i) words[i] = 0;
  }
  __device__ static std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    if constexpr (kWide)
      return max(a, b);
    else
      return __vmaxu2(a, b);
  }
  __device__ static std::uint32_t unsigned_word(std::uint32_t word) {
    return word & (kWide ? 0x7FFFFFFFu : 0x7FFF7FFFu);
  }
  __device__ void raise(const Source& vector) {
#pragma unroll
    for (int i = 0; i < Source::kWords; ++i) words[i] = larger(words[i], unsigned_word(vector.words[i]));
  }
  /// The maximum over all columns, of 16-bit types still packed.
  __device__ std::uint32_t folded() const {
    std::uint32_t all = words[0];
#pragma unroll
    for (int i = 1; i < Source::kWords; ++i) all = larger(all, words[i]);
    return all;
  }
  __device__ static std::uint32_t folded(const Source& vector) {
    std::uint32_t all = unsigned_word(vector.words[0]);
#pragma unroll
    for (int i = 1; i < Source::kWords; ++i) all = larger(all, unsigned_word(vector.words[i]));
    return all;
  }
  /// Converts a magnitude of the type to the bits of a float.
  __device__ static std::uint32_t widened(std::uint32_t bits) {
    if constexpr (kWide) return bits;
    if constexpr (In == DType::kBF16) return bits << 16;
    return float_bits(f16_to_f32({static_cast<std::uint16_t>(bits)}));
  }
  /// The maximum of a folded word, as the bits of a float.
  __device__ static std::uint32_t unfolded(std::uint32_t word) {
    return kWide ? word : widened(max(word & 0xFFFFu, word >> 16));
  }
  /// The maximum of one column, as the bits of a float.
  __device__ std::uint32_t of_column(int j) const {
    return kWide ? words[j] : widened((words[j / 2] >> (16 * (j % 2))) & 0xFFFFu);
  }
};

/// Two 8-bit values, the first in the low byte.
template <DType Float8>
__device__ std::uint32_t encode_pair(float first, float second) {
  constexpr __nv_fp8_interpretation_t kKind = Float8 == DType::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, kKind);
}
template <DType Float8>
__device__ std::uint32_t encode_quad(float a, float b, float c, float d) {
  return encode_pair<Float8>(a, b) | encode_pair<Float8>(c, d) << 16;
}

/// Casts a vector under one scale; elements stay in order.
template <DType Float8, DType In>
__device__ Vector<Float8, 8> cast_vector(const Vector<In, 8>& x, float scale) {
  return {encode_quad<Float8>(x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale),
          encode_quad<Float8>(x[4] * scale, x[5] * scale, x[6] * scale, x[7] * scale)};
}

/// Transposes the bytes of four words: word i of the result holds the i-th byte of each.
__device__ inline void transpose_4x4(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c, std::uint32_t& d) {
  const std::uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
  const std::uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  a = __byte_perm(ab_low, cd_low, 0x5410);
  b = __byte_perm(ab_low, cd_low, 0x7632);
  c = __byte_perm(ab_high, cd_high, 0x5410);
  d = __byte_perm(ab_high, cd_high, 0x7632);
}

/// Transposes eight rows of eight 8-bit values in place.
template <DType Float8>
__device__ void transpose_8x8(Vector<Float8, 8> (&data)[8]) {
  transpose_4x4(data[0].words[0], data[1].words[0], data[2].words[0], data[3].words[0]);
  transpose_4x4(data[0].words[1], data[1].words[1], data[2].words[1], data[3].words[1]);
  transpose_4x4(data[4].words[0], data[5].words[0], data[6].words[0], data[7].words[0]);
  transpose_4x4(data[4].words[1], data[5].words[1], data[6].words[1], data[7].words[1]);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t upper_right = data[k].words[1];
    data[k].words[1] = data[k + 4].words[0];
    data[k + 4].words[0] = upper_right;
  }
}

}  // namespace fp8lab::cuda

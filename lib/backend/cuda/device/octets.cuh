#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/device/elements.cuh"
#include "backend/cuda/device/magnitudes.cuh"
#include "core/float16.h"
#include "tensor/view.h"

// Octets: eight neighbouring elements of a row in a thread's registers. They are read in 16-byte loads, measured as the
// bits of their own type, and cast in pairs by the GPU's conversion instructions.
namespace fp8lab::cuda {

template <DType In>
struct Octet {
  static constexpr bool kWide = In == DType::kF32;
  static constexpr int kWords = kWide ? 8 : 4;
  std::uint32_t words[kWords];

  /// Loads eight elements from memory aligned to 16 bytes.
  __device__ void load(const void* from) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      const uint4 piece = __ldg(static_cast<const uint4*>(from) + i);
      words[4 * i] = piece.x;
      words[4 * i + 1] = piece.y;
      words[4 * i + 2] = piece.z;
      words[4 * i + 3] = piece.w;
    }
  }
  /// Loads the first `count` of eight elements; the others become zero.
  __device__ void load_some(const void* from, int count) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (j >= count) continue;
      if constexpr (kWide)
        words[j] = static_cast<const std::uint32_t*>(from)[j];
      else
        words[j / 2] |= std::uint32_t{static_cast<const std::uint16_t*>(from)[j]} << (16 * (j % 2));
    }
  }
  __device__ void zero() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
  }

  __device__ float operator[](int j) const {
    if constexpr (kWide) {
      return float_from_bits(words[j]);
    } else if constexpr (In == DType::kBF16) {
      return float_from_bits(j % 2 == 0 ? words[j / 2] << 16 : words[j / 2] & 0xFFFF0000u);
    } else {
      const auto bits = static_cast<std::uint16_t>(words[j / 2] >> (16 * (j % 2)));
      return __half2float(__ushort_as_half(bits));
    }
  }
};

/// Largest magnitudes of octets per column, as bits of the type itself, which order like the values; 16-bit types are
/// packed two to a word.
template <DType In>
struct Magnitudes {
  using Source = Octet<In>;
  std::uint32_t words[Source::kWords];

  __device__ void zero() {
#pragma unroll
    for (int i = 0; i < Source::kWords; ++i) words[i] = 0;
  }
  __device__ static std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    if constexpr (Source::kWide)
      return max(a, b);
    else
      return __vmaxu2(a, b);
  }
  __device__ static std::uint32_t unsigned_word(std::uint32_t word) {
    return word & (Source::kWide ? 0x7FFFFFFFu : 0x7FFF7FFFu);
  }
  __device__ void raise(const Source& octet) {
#pragma unroll
    for (int i = 0; i < Source::kWords; ++i) words[i] = larger(words[i], unsigned_word(octet.words[i]));
  }
  /// The maximum over all columns, of 16-bit types still packed.
  __device__ std::uint32_t folded() const {
    std::uint32_t all = words[0];
#pragma unroll
    for (int i = 1; i < Source::kWords; ++i) all = larger(all, words[i]);
    return all;
  }
  __device__ static std::uint32_t folded(const Source& octet) {
    std::uint32_t all = unsigned_word(octet.words[0]);
#pragma unroll
    for (int i = 1; i < Source::kWords; ++i) all = larger(all, unsigned_word(octet.words[i]));
    return all;
  }
  /// Converts a magnitude of the type to the bits of a float.
  __device__ static std::uint32_t widened(std::uint32_t bits) {
    if constexpr (Source::kWide) return bits;
    if constexpr (In == DType::kBF16) return bits << 16;
    return float_bits(f16_to_f32({static_cast<std::uint16_t>(bits)}));
  }
  /// The maximum of a folded word, as the bits of a float.
  __device__ static std::uint32_t unfolded(std::uint32_t word) {
    return Source::kWide ? word : widened(max(word & 0xFFFFu, word >> 16));
  }
  /// The maximum of one column, as the bits of a float.
  __device__ std::uint32_t of_column(int j) const {
    return Source::kWide ? words[j] : widened((words[j / 2] >> (16 * (j % 2))) & 0xFFFFu);
  }
};

/// Two 8-bit values, the first in the low byte.
template <DType Payload>
__device__ std::uint32_t encode_pair(float first, float second) {
  constexpr __nv_fp8_interpretation_t kKind = Payload == DType::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, kKind);
}
template <DType Payload>
__device__ std::uint32_t encode_quad(float a, float b, float c, float d) {
  return encode_pair<Payload>(a, b) | encode_pair<Payload>(c, d) << 16;
}

/// Casts an octet under one scale; elements stay in order.
template <DType Payload, DType In>
__device__ uint2 encode_octet(const Octet<In>& x, float scale) {
  return {encode_quad<Payload>(x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale),
          encode_quad<Payload>(x[4] * scale, x[5] * scale, x[6] * scale, x[7] * scale)};
}

/// Transposes the bytes of four words: word i of the result holds the i-th byte of each.
__device__ inline void transpose_quads(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c, std::uint32_t& d) {
  const std::uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
  const std::uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  a = __byte_perm(ab_low, cd_low, 0x5410);
  b = __byte_perm(ab_low, cd_low, 0x7632);
  c = __byte_perm(ab_high, cd_high, 0x5410);
  d = __byte_perm(ab_high, cd_high, 0x7632);
}

/// Transposes eight rows of eight 8-bit values in place.
__device__ inline void transpose_octets(uint2 (&data)[8]) {
  transpose_quads(data[0].x, data[1].x, data[2].x, data[3].x);
  transpose_quads(data[0].y, data[1].y, data[2].y, data[3].y);
  transpose_quads(data[4].x, data[5].x, data[6].x, data[7].x);
  transpose_quads(data[4].y, data[5].y, data[6].y, data[7].y);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t upper_right = data[k].y;
    data[k].y = data[k + 4].x;
    data[k + 4].x = upper_right;
  }
}

}  // namespace fp8lab::cuda

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/device/elements.cuh"
#include "backend/cuda/device/vectors.cuh"

// Conversions between vectors (vectors.cuh) and FP32 values.
//   widen(), narrow()  bitwise equal to core/float16.h and core/float8.h
//   widen_fast()       the GPU's conversion instructions: only the bits of NaNs may differ
namespace fp8lab::cuda {

/// Converts a vector whose elements have type `From`.
template <DType From, auto Type, int Width>
__device__ __forceinline__ void widen_as(const Vector<Type, Width>& vector, float (&values)[Width]) {
  using Stored = typename Element<From>::Storage;
  std::uint32_t words[Vector<Type, Width>::kWords];
  vector.copy_words(words);
#pragma unroll
  for (int j = 0; j < Width; ++j) {
    const std::uint32_t word = words[j * static_cast<int>(sizeof(Stored)) / 4];
    if constexpr (From == DType::kBF16)
      values[j] = float_from_bits(j % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
    else if constexpr (sizeof(Stored) == 4)
      values[j] = Element<From>::load(__builtin_bit_cast(Stored, word));
    else if constexpr (sizeof(Stored) == 2)
      values[j] = Element<From>::load(__builtin_bit_cast(Stored, static_cast<std::uint16_t>(word >> (j % 2 * 16))));
    else
      values[j] = Element<From>::load(static_cast<std::uint8_t>(word >> (j % 4 * 8)));
  }
}

/// `type` is needed only if it is not known at compile time.
template <auto Type, int Width>
__device__ __forceinline__ void widen(const Vector<Type, Width>& vector, float (&values)[Width], DType type = {}) {
  if constexpr (static_cast<int>(Type) >= 0) {
    widen_as<static_cast<DType>(Type)>(vector, values);
  } else {
    switch (type) {
      case DType::kF32: return widen_as<DType::kF32>(vector, values);
      case DType::kF16: return widen_as<DType::kF16>(vector, values);
      case DType::kBF16: return widen_as<DType::kBF16>(vector, values);
      default: break;
    }
    if constexpr (static_cast<int>(Type) == kAnyTypes) {
      switch (type) {
        case DType::kE4M3: return widen_as<DType::kE4M3>(vector, values);
        case DType::kE5M2: return widen_as<DType::kE5M2>(vector, values);
        case DType::kE8M0: return widen_as<DType::kE8M0>(vector, values);
        case DType::kU8: return widen_as<DType::kU8>(vector, values);
        case DType::kI16: return widen_as<DType::kI16>(vector, values);
        case DType::kI32: return widen_as<DType::kI32>(vector, values);
        default: break;
      }
    }
  }
}

/// Two numbers in 16 bits, the first in the lower 16, by one instruction. Its NaNs have other bits than the host's.
template <DType Type>
__device__ inline std::uint32_t pack_numbers(float first, float second) {
  if constexpr (Type == DType::kBF16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

/// Values in 16 bits, two per word. NaNs keep their sign.
template <DType Type, int Width>
__device__ inline void pack(const float (&values)[Width], std::uint32_t (&words)[Width / 2]) {
  bool nan = false;
#pragma unroll
  for (int i = 0; i < Width / 2; ++i) {
    words[i] = pack_numbers<Type>(values[2 * i], values[2 * i + 1]);
    nan |= (values[2 * i] != values[2 * i]) | (values[2 * i + 1] != values[2 * i + 1]);
  }
  if (!nan) return;
#pragma unroll
  for (int i = 0; i < Width / 2; ++i)
    words[i] = Element<Type>::store(values[2 * i]).bits |
               static_cast<std::uint32_t>(Element<Type>::store(values[2 * i + 1]).bits) << 16;
}

/// Rounds to nearest even (FP8: saturating). NaNs keep their sign.
template <DType Type, int Width>
__device__ inline Vector<Type, Width> narrow(const float (&values)[Width]) {
  Vector<Type, Width> vector;
  if constexpr (Type == DType::kBF16 || Type == DType::kF16) {
    pack<Type>(values, vector.words);
  } else if constexpr (Type == DType::kF32) {
#pragma unroll
    for (int j = 0; j < Width; ++j) vector.words[j] = float_bits(values[j]);
  } else {
    vector.zero();
#pragma unroll
    for (int j = 0; j < Width; ++j)
      vector.words[j / 4] |= static_cast<std::uint32_t>(Element<Type>::store(values[j])) << (j % 4 * 8);
  }
  return vector;
}

// FloatVector: if `type` is a constant, every switch folds away.

/// Four elements of a 16-bit type.
__device__ __forceinline__ FloatVector pack16(const std::uint16_t (&parts)[kVector]) {
  return {make_uint4(parts[0] | static_cast<unsigned>(parts[1]) << 16, parts[2] | static_cast<unsigned>(parts[3]) << 16,
                     0, 0)};
}

/// Four 8-bit values, the first in the lowest byte.
__device__ __forceinline__ std::uint32_t encode4(DType type, const float (&values)[kVector]) {
  const __nv_fp8_interpretation_t format = type == DType::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(values[0], values[1]), __NV_SATFINITE, format);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(values[2], values[3]), __NV_SATFINITE, format);
  return low | high << 16;
}

/// Widens the two FP16 values of a word.
__device__ __forceinline__ void widen_half2(std::uint32_t word, float& low, float& high) {
  __half2_raw raw;
  raw.x = static_cast<unsigned short>(word);
  raw.y = static_cast<unsigned short>(word >> 16);
  const float2 values = __half22float2(raw);
  low = values.x;
  high = values.y;
}
__device__ __forceinline__ void widen_bf162(std::uint32_t word, float& low, float& high) {
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xFFFF0000u);
}

__device__ __forceinline__ void widen_fast(const FloatVector& vector, float (&values)[kVector], DType type) {
  switch (type) {
    case DType::kF32:
      values[0] = __uint_as_float(vector.words.x);
      values[1] = __uint_as_float(vector.words.y);
      values[2] = __uint_as_float(vector.words.z);
      values[3] = __uint_as_float(vector.words.w);
      return;
    case DType::kBF16:
      widen_bf162(vector.words.x, values[0], values[1]);
      widen_bf162(vector.words.y, values[2], values[3]);
      return;
    case DType::kF16:
      widen_half2(vector.words.x, values[0], values[1]);
      widen_half2(vector.words.y, values[2], values[3]);
      return;
    default: {
      const __nv_fp8_interpretation_t format = type == DType::kE4M3 ? __NV_E4M3 : __NV_E5M2;
      const std::uint32_t word = vector.words.x;
      const __half2_raw low = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word), format);
      const __half2_raw high = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word >> 16), format);
      const float2 first = __half22float2(low), last = __half22float2(high);
      values[0] = first.x;
      values[1] = first.y;
      values[2] = last.x;
      values[3] = last.y;
    }
  }
}

/// True if one of the values is NaN. Also true for infinities of both signs, which only costs the slower path.
__device__ __forceinline__ bool may_have_nan(const float (&values)[kVector]) {
  const float sum = (values[0] + values[1]) + (values[2] + values[3]);
  return sum != sum;
}

__device__ __forceinline__ unsigned narrow_half2(float low, float high) {
  const __half2_raw raw = __floats2half2_rn(low, high);
  return raw.x | static_cast<unsigned>(raw.y) << 16;
}
__device__ __forceinline__ unsigned narrow_bf162(float low, float high) {
  const __nv_bfloat162_raw raw = __floats2bfloat162_rn(low, high);
  return raw.x | static_cast<unsigned>(raw.y) << 16;
}
__device__ __forceinline__ unsigned narrow_half2_with_nan(float low, float high) {
  return f32_to_f16(low).bits | static_cast<unsigned>(f32_to_f16(high).bits) << 16;
}
__device__ __forceinline__ unsigned narrow_bf162_with_nan(float low, float high) {
  return f32_to_bf16(low).bits | static_cast<unsigned>(f32_to_bf16(high).bits) << 16;
}

/// Rounds to nearest even (FP8: saturating). NaNs keep their sign.
__device__ __forceinline__ FloatVector narrow(const float (&values)[kVector], DType type) {
  switch (type) {
    case DType::kF32:
      return {make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
                         __float_as_uint(values[3]))};
    case DType::kBF16:
      if (may_have_nan(values))
        return {
            make_uint4(narrow_bf162_with_nan(values[0], values[1]), narrow_bf162_with_nan(values[2], values[3]), 0, 0)};
      return {make_uint4(narrow_bf162(values[0], values[1]), narrow_bf162(values[2], values[3]), 0, 0)};
    case DType::kF16:
      if (may_have_nan(values))
        return {
            make_uint4(narrow_half2_with_nan(values[0], values[1]), narrow_half2_with_nan(values[2], values[3]), 0, 0)};
      return {make_uint4(narrow_half2(values[0], values[1]), narrow_half2(values[2], values[3]), 0, 0)};
    default: return {make_uint4(encode4(type, values), 0, 0, 0)};
  }
}

}  // namespace fp8lab::cuda

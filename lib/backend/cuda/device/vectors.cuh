#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/device/elements.cuh"
#include "core/dtype.h"

// Vectors of four elements of an array whose type is known at compile time or at run time: where `type` is a constant,
// every switch folds away. Reading and converting are separate steps, so that all loads of a thread can be in flight
// before the first is waited for. The GPU's conversion instructions are used; they differ from core/float16.h only in
// the bits of NaNs. The host refuses types other than those below.
namespace fp8lab::cuda {

inline constexpr int kVector = 4;

__device__ constexpr int bytes_of(DType type) {
  return type == DType::kF32 ? 4 : type == DType::kE4M3 || type == DType::kE5M2 ? 1 : 2;
}

/// Four elements as they are stored; words that narrower types do not use are undefined.
struct Raw4 {
  uint4 bits;
};

__device__ __forceinline__ float load1(const std::byte* data, DType type, std::int64_t at) {
  switch (type) {
    case DType::kF32: return reinterpret_cast<const float*>(data)[at];
    case DType::kBF16: return bf16_to_f32(reinterpret_cast<const BFloat16*>(data)[at]);
    case DType::kF16: return f16_to_f32(reinterpret_cast<const Half*>(data)[at]);
    case DType::kE4M3: return e4m3_to_f32(reinterpret_cast<const std::uint8_t*>(data)[at]);
    case DType::kE5M2: return e5m2_to_f32(reinterpret_cast<const std::uint8_t*>(data)[at]);
    default: return 0.0f;
  }
}

__device__ __forceinline__ void store1(std::byte* data, DType type, std::int64_t at, float value) {
  switch (type) {
    case DType::kF32: reinterpret_cast<float*>(data)[at] = value; return;
    case DType::kBF16: reinterpret_cast<BFloat16*>(data)[at] = f32_to_bf16(value); return;
    case DType::kF16: reinterpret_cast<Half*>(data)[at] = f32_to_f16(value); return;
    case DType::kE4M3: reinterpret_cast<std::uint8_t*>(data)[at] = Element<DType::kE4M3>::store(value); return;
    case DType::kE5M2: reinterpret_cast<std::uint8_t*>(data)[at] = Element<DType::kE5M2>::store(value); return;
    default: return;
  }
}

/// Loads elements at ... at + 3: `at` must be a multiple of four, and `data` aligned to four elements.
__device__ __forceinline__ Raw4 load4(const std::byte* data, DType type, std::int64_t at) {
  const std::byte* from = data + at * bytes_of(type);
  Raw4 raw;
  switch (bytes_of(type)) {
    case 4: raw.bits = *reinterpret_cast<const uint4*>(from); break;
    case 2: {
      const uint2 pair = *reinterpret_cast<const uint2*>(from);
      raw.bits = make_uint4(pair.x, pair.y, 0, 0);
      break;
    }
    default: raw.bits = make_uint4(*reinterpret_cast<const unsigned*>(from), 0, 0, 0);
  }
  return raw;
}

__device__ __forceinline__ void store4(std::byte* data, DType type, std::int64_t at, const Raw4& raw) {
  std::byte* to = data + at * bytes_of(type);
  switch (bytes_of(type)) {
    case 4: *reinterpret_cast<uint4*>(to) = raw.bits; break;
    case 2: *reinterpret_cast<uint2*>(to) = make_uint2(raw.bits.x, raw.bits.y); break;
    default: *reinterpret_cast<unsigned*>(to) = raw.bits.x;
  }
}

/// Element `i` of a vector of a 16-bit type, as its bits.
__device__ __forceinline__ std::uint16_t element16(const Raw4& raw, int i) {
  const unsigned word = i < 2 ? raw.bits.x : raw.bits.y;
  return static_cast<std::uint16_t>(i % 2 == 0 ? word : word >> 16);
}

__device__ __forceinline__ Raw4 pack16(const std::uint16_t (&parts)[kVector]) {
  return {make_uint4(parts[0] | static_cast<unsigned>(parts[1]) << 16, parts[2] | static_cast<unsigned>(parts[3]) << 16,
                     0, 0)};
}

/// Four 8-bit values, the first in the lowest byte.
__device__ __forceinline__ unsigned encode4(DType type, const float (&values)[kVector]) {
  const __nv_fp8_interpretation_t format = type == DType::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  const unsigned low = __nv_cvt_float2_to_fp8x2(make_float2(values[0], values[1]), __NV_SATFINITE, format);
  const unsigned high = __nv_cvt_float2_to_fp8x2(make_float2(values[2], values[3]), __NV_SATFINITE, format);
  return low | high << 16;
}

/// Widens the two FP16 values of a word.
__device__ __forceinline__ void widen_half2(unsigned word, float& low, float& high) {
  __half2_raw raw;
  raw.x = static_cast<unsigned short>(word);
  raw.y = static_cast<unsigned short>(word >> 16);
  const float2 values = __half22float2(raw);
  low = values.x;
  high = values.y;
}
__device__ __forceinline__ void widen_bf162(unsigned word, float& low, float& high) {
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xFFFF0000u);
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
/// True if one of the values is NaN. Also true for infinities of both signs, which only costs the slower path.
__device__ __forceinline__ bool may_have_nan(const float (&values)[kVector]) {
  const float sum = (values[0] + values[1]) + (values[2] + values[3]);
  return sum != sum;
}

__device__ __forceinline__ void decode(DType type, const Raw4& raw, float (&values)[kVector]) {
  switch (type) {
    case DType::kF32:
      values[0] = __uint_as_float(raw.bits.x);
      values[1] = __uint_as_float(raw.bits.y);
      values[2] = __uint_as_float(raw.bits.z);
      values[3] = __uint_as_float(raw.bits.w);
      return;
    case DType::kBF16:
      widen_bf162(raw.bits.x, values[0], values[1]);
      widen_bf162(raw.bits.y, values[2], values[3]);
      return;
    case DType::kF16:
      widen_half2(raw.bits.x, values[0], values[1]);
      widen_half2(raw.bits.y, values[2], values[3]);
      return;
    default: {
      const __nv_fp8_interpretation_t format = type == DType::kE4M3 ? __NV_E4M3 : __NV_E5M2;
      const __half2_raw low = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(raw.bits.x), format);
      const __half2_raw high = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(raw.bits.x >> 16), format);
      const float2 first = __half22float2(low), last = __half22float2(high);
      values[0] = first.x;
      values[1] = first.y;
      values[2] = last.x;
      values[3] = last.y;
    }
  }
}

__device__ __forceinline__ Raw4 encode(DType type, const float (&values)[kVector]) {
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

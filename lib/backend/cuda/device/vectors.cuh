#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/device/elements.cuh"
#include "core/dtype.h"

// Four elements at a time of an array whose type is known at compile time or at run time: where `type` is a constant, every
// switch folds away. Reading and converting are two steps, so that all loads of a thread can be under way before the first is
// waited for. The host refuses other types than those of Element.
namespace fp8lab::cuda {

inline constexpr int kVector = 4;

__device__ constexpr int bytes_of(DType type) {
  return type == DType::kF32 ? 4 : type == DType::kE4M3 || type == DType::kE5M2 ? 1 : 2;
}

/// Four elements as they lie in memory; what narrower types leave over is undefined.
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

/// `at` is a multiple of four and `data` aligned to four elements.
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

/// Element `i` of 16 bits.
__device__ __forceinline__ std::uint16_t half_of(const Raw4& raw, int i) {
  const unsigned word = i < 2 ? raw.bits.x : raw.bits.y;
  return static_cast<std::uint16_t>(i % 2 == 0 ? word : word >> 16);
}

__device__ __forceinline__ Raw4 of_halves(const std::uint16_t (&halves)[kVector]) {
  return {make_uint4(halves[0] | static_cast<unsigned>(halves[1]) << 16, halves[2] | static_cast<unsigned>(halves[3]) << 16, 0, 0)};
}

/// Four codes, the first in the lowest byte.
__device__ __forceinline__ unsigned encode4(DType type, const float (&values)[kVector]) {
  const __nv_fp8_interpretation_t format = type == DType::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  const unsigned low = __nv_cvt_float2_to_fp8x2(make_float2(values[0], values[1]), __NV_SATFINITE, format);
  const unsigned high = __nv_cvt_float2_to_fp8x2(make_float2(values[2], values[3]), __NV_SATFINITE, format);
  return low | high << 16;
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
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = bf16_to_f32({half_of(raw, i)});
      return;
    case DType::kF16:
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = f16_to_f32({half_of(raw, i)});
      return;
    case DType::kE4M3:
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = e4m3_to_f32(static_cast<std::uint8_t>(raw.bits.x >> (8 * i)));
      return;
    default:
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = e5m2_to_f32(static_cast<std::uint8_t>(raw.bits.x >> (8 * i)));
  }
}

__device__ __forceinline__ Raw4 encode(DType type, const float (&values)[kVector]) {
  switch (type) {
    case DType::kF32:
      return {make_uint4(__float_as_uint(values[0]), __float_as_uint(values[1]), __float_as_uint(values[2]),
                         __float_as_uint(values[3]))};
    case DType::kBF16:
    case DType::kF16: {
      std::uint16_t halves[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        halves[i] = type == DType::kBF16 ? f32_to_bf16(values[i]).bits : f32_to_f16(values[i]).bits;
      return of_halves(halves);
    }
    default: return {make_uint4(encode4(type, values), 0, 0, 0)};
  }
}

}  // namespace fp8lab::cuda

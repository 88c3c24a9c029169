#pragma once

#include <cuda_fp8.h>

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/float16.h"
#include "core/float8.h"

// How device code reads and writes elements of each type. The GPU's conversion instructions are bitwise equal to
// core/float8.h: correctness/cuda compares them over all 2^32 floats.
namespace fp8lab::cuda {

template <DType Type>
struct Element;

template <>
struct Element<DType::kF32> {
  using Storage = float;
  __device__ static float load(float x) { return x; }
  __device__ static float store(float x) { return x; }
};
template <>
struct Element<DType::kBF16> {
  using Storage = BFloat16;
  __device__ static float load(BFloat16 x) { return bf16_to_f32(x); }
  __device__ static BFloat16 store(float x) { return f32_to_bf16(x); }
};
template <>
struct Element<DType::kF16> {
  using Storage = Half;
  __device__ static float load(Half x) { return f16_to_f32(x); }
  __device__ static Half store(float x) { return f32_to_f16(x); }
};
template <>
struct Element<DType::kE4M3> {
  using Storage = std::uint8_t;
  __device__ static float load(std::uint8_t x) { return e4m3_to_f32(x); }
  __device__ static std::uint8_t store(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
};
template <>
struct Element<DType::kE5M2> {
  using Storage = std::uint8_t;
  __device__ static float load(std::uint8_t x) { return e5m2_to_f32(x); }
  __device__ static std::uint8_t store(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2); }
};
// Types that kernels only read.
template <>
struct Element<DType::kE8M0> {
  using Storage = std::uint8_t;
  __device__ static float load(std::uint8_t x) { return e8m0_to_f32(x); }
};
template <>
struct Element<DType::kU8> {
  using Storage = std::uint8_t;
  __device__ static float load(std::uint8_t x) { return static_cast<float>(x); }
};
template <>
struct Element<DType::kI16> {
  using Storage = std::int16_t;
  __device__ static float load(std::int16_t x) { return static_cast<float>(x); }
};
template <>
struct Element<DType::kI32> {
  using Storage = std::int32_t;
  __device__ static float load(std::int32_t x) { return static_cast<float>(x); }
};

/// Element `at` of an array of f32, bf16, f16, e4m3 or e5m2, exactly. If `type` is a constant, the switch folds
/// away.
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

/// Stores an element rounded to nearest even (FP8: saturating).
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

}  // namespace fp8lab::cuda

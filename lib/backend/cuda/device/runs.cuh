#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/device/elements.cuh"
#include "core/dtype.h"
#include "core/float8.h"
#include "tensor/view.h"

// Runs of FP32 values read from and rounded to whatever a matrix stores, as backend/cpu/rows.h has them. A run of eight is
// one 16-byte access in 16-bit types, two in FP32 and an 8-byte one in FP8.
namespace fp8lab::cuda {

/// A matrix as device code walks it.
struct Elements {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;

  template <class T>
  __device__ T* at(std::int64_t row, std::int64_t col) const {
    return reinterpret_cast<T*>(data) + row * row_stride + col * col_stride;
  }
};

__host__ __device__ inline Elements elements(const MatrixView& view) {
  return {.data = view.data, .dtype = view.dtype, .row_stride = view.row_stride, .col_stride = view.col_stride};
}

/// What a wide run starts at: 16 bytes, or the run's size if that is less.
inline constexpr int kRunWidth = 8;
inline std::int64_t run_alignment(DType dtype) {
  const auto bytes = static_cast<std::int64_t>(size_bytes(dtype)) * kRunWidth;
  return bytes < 16 ? bytes : 16;
}
/// Whether every row of `view` can be read in wide runs.
inline bool holds_runs(const MatrixView& view) {
  if (view.cols > 1 && view.col_stride != 1) return false;
  const std::int64_t alignment = run_alignment(view.dtype);
  const std::int64_t step = view.row_stride * static_cast<std::int64_t>(size_bytes(view.dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(alignment) == 0 &&
         (view.rows <= 1 || step % alignment == 0);
}

template <class T>
struct alignas(sizeof(T) * kRunWidth < 16 ? sizeof(T) * kRunWidth : 16) Run {
  T values[kRunWidth];
};

/// Two values in 16 bits, the first in the low half: one instruction, except that NaNs keep their sign as the host's do.
template <DType Type>
__device__ inline std::uint32_t store_pair(float first, float second) {
  if (__builtin_expect(isnan(first) || isnan(second), 0))
    return Element<Type>::store(first).bits | static_cast<std::uint32_t>(Element<Type>::store(second).bits) << 16;
  if constexpr (Type == DType::kBF16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

/// A run of a row of contiguous elements.
template <DType Type>
__device__ inline void load_whole(const typename Element<Type>::Storage* from, float (&values)[kRunWidth]) {
  using Storage = typename Element<Type>::Storage;
  const Run<Storage> run = *reinterpret_cast<const Run<Storage>*>(from);
#pragma unroll
  for (int j = 0; j < kRunWidth; ++j) values[j] = Element<Type>::load(run.values[j]);
}
template <DType Type>
__device__ inline void store_whole(const float (&values)[kRunWidth], typename Element<Type>::Storage* to) {
  using Storage = typename Element<Type>::Storage;
  if constexpr (Type == DType::kBF16 || Type == DType::kF16) {
    uint4 words;
    words.x = store_pair<Type>(values[0], values[1]);
    words.y = store_pair<Type>(values[2], values[3]);
    words.z = store_pair<Type>(values[4], values[5]);
    words.w = store_pair<Type>(values[6], values[7]);
    *reinterpret_cast<uint4*>(to) = words;
  } else {
    Run<Storage> run;
#pragma unroll
    for (int j = 0; j < kRunWidth; ++j) run.values[j] = Element<Type>::store(values[j]);
    *reinterpret_cast<Run<Storage>*>(to) = run;
  }
}

template <DType Type, bool Wide, int Width>
__device__ inline void load_typed(const Elements& from, std::int64_t row, std::int64_t col, std::int64_t count,
                                  float (&values)[Width]) {
  using Storage = typename Element<Type>::Storage;
  if constexpr (Wide && Width == kRunWidth) {
    const Storage* at = reinterpret_cast<const Storage*>(from.data) + row * from.row_stride + col;
    if (count >= Width) return load_whole<Type>(at, values);
#pragma unroll
    for (int j = 0; j < Width; ++j) values[j] = j < count ? Element<Type>::load(at[j]) : 0.0f;
  } else {
    const Storage* at = from.at<const Storage>(row, col);
#pragma unroll
    for (int j = 0; j < Width; ++j) values[j] = j < count ? Element<Type>::load(at[j * from.col_stride]) : 0.0f;
  }
}

template <DType Type, bool Wide, int Width>
__device__ inline void store_typed(const float (&values)[Width], const Elements& to, std::int64_t row, std::int64_t col,
                                   std::int64_t count) {
  using Storage = typename Element<Type>::Storage;
  if constexpr (Wide && Width == kRunWidth) {
    Storage* at = reinterpret_cast<Storage*>(to.data) + row * to.row_stride + col;
    if (count >= Width) return store_whole<Type>(values, at);
#pragma unroll
    for (int j = 0; j < Width; ++j)
      if (j < count) at[j] = Element<Type>::store(values[j]);
  } else {
    Storage* at = to.at<Storage>(row, col);
#pragma unroll
    for (int j = 0; j < Width; ++j)
      if (j < count) at[j * to.col_stride] = Element<Type>::store(values[j]);
  }
}

/// What is known of a matrix's type when a kernel is compiled: the type itself, that one can calculate with it (f32, f16 or
/// bf16), or nothing.
inline constexpr int kRealTypes = -1;
inline constexpr int kAnyTypes = -2;

/// Exactly, `count` elements at most; 0 beyond. Any type but I64. `Wide`: the rows hold runs, as holds_runs() says.
template <int Type, bool Wide = true, int Width>
__device__ inline void load_run(const Elements& from, std::int64_t row, std::int64_t col, std::int64_t count,
                                float (&values)[Width]) {
  if constexpr (Type >= 0) {
    load_typed<static_cast<DType>(Type), Wide>(from, row, col, count, values);
  } else {
    switch (from.dtype) {
      case DType::kF32: return load_typed<DType::kF32, Wide>(from, row, col, count, values);
      case DType::kF16: return load_typed<DType::kF16, Wide>(from, row, col, count, values);
      case DType::kBF16: return load_typed<DType::kBF16, Wide>(from, row, col, count, values);
      default: break;
    }
    if constexpr (Type == kAnyTypes) {
      switch (from.dtype) {
        case DType::kE4M3: return load_typed<DType::kE4M3, Wide>(from, row, col, count, values);
        case DType::kE5M2: return load_typed<DType::kE5M2, Wide>(from, row, col, count, values);
        case DType::kE8M0: return load_typed<DType::kE8M0, Wide>(from, row, col, count, values);
        case DType::kU8: return load_typed<DType::kU8, Wide>(from, row, col, count, values);
        case DType::kI16: return load_typed<DType::kI16, Wide>(from, row, col, count, values);
        case DType::kI32: return load_typed<DType::kI32, Wide>(from, row, col, count, values);
        default: break;
      }
    }
  }
}

/// f32, f16, bf16, e4m3 and e5m2, rounded to nearest even.
template <int Type, bool Wide = true, int Width>
__device__ inline void store_run(const float (&values)[Width], const Elements& to, std::int64_t row, std::int64_t col,
                                 std::int64_t count) {
  if constexpr (Type >= 0) {
    store_typed<static_cast<DType>(Type), Wide>(values, to, row, col, count);
  } else {
    switch (to.dtype) {
      case DType::kF32: return store_typed<DType::kF32, Wide>(values, to, row, col, count);
      case DType::kF16: return store_typed<DType::kF16, Wide>(values, to, row, col, count);
      case DType::kBF16: return store_typed<DType::kBF16, Wide>(values, to, row, col, count);
      default: break;
    }
    if constexpr (Type == kAnyTypes) {
      if (to.dtype == DType::kE4M3) store_typed<DType::kE4M3, Wide>(values, to, row, col, count);
      if (to.dtype == DType::kE5M2) store_typed<DType::kE5M2, Wide>(values, to, row, col, count);
    }
  }
}

}  // namespace fp8lab::cuda

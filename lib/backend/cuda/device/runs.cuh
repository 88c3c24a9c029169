#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/device/conversions.cuh"
#include "backend/cuda/device/elements.cuh"
#include "backend/cuda/device/vectors.cuh"
#include "core/dtype.h"
#include "tensor/view.h"

// Runs of FP32 values, read from and rounded to whatever type a matrix stores, as in backend/cpu/rows.h. A wide run is
// eight elements, read and written as a vector (vectors.cuh).
namespace fp8lab::cuda {

/// A matrix as device code accesses it.
struct Elements {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;

  /// Index of an element of a row without gaps between elements.
  __device__ std::int64_t index(std::int64_t row, std::int64_t col) const { return row * row_stride + col; }
  template <class T>
  __device__ T* at(std::int64_t row, std::int64_t col) const {
    return reinterpret_cast<T*>(data) + row * row_stride + col * col_stride;
  }
};

__host__ __device__ inline Elements elements(const MatrixView& view) {
  return {.data = view.data, .dtype = view.dtype, .row_stride = view.row_stride, .col_stride = view.col_stride};
}

/// Alignment of a wide run in bytes: 16, or the run's size if that is less.
inline constexpr int kRunWidth = 8;
inline std::int64_t run_alignment(DType dtype) {
  const auto bytes = static_cast<std::int64_t>(size_bytes(dtype)) * kRunWidth;
  return bytes < 16 ? bytes : 16;
}
/// True if every row of `view` can be accessed in wide runs.
inline bool holds_runs(const MatrixView& view) {
  if (view.cols > 1 && view.col_stride != 1) return false;
  const std::int64_t alignment = run_alignment(view.dtype);
  const std::int64_t step = view.row_stride * static_cast<std::int64_t>(size_bytes(view.dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(alignment) == 0 &&
         (view.rows <= 1 || step % alignment == 0);
}

/// The place of a run in a matrix. `there`: the run lies inside of it.
struct RunPlace {
  std::int64_t row;
  std::int64_t col;
  bool there;
};

template <DType Type, bool Wide, int Width>
__device__ inline void load_typed(const Elements& from, std::int64_t row, std::int64_t col, std::int64_t count,
                                  float (&values)[Width]) {
  using Storage = typename Element<Type>::Storage;
  if constexpr (Wide && Width == kRunWidth) {
    const Storage* at = reinterpret_cast<const Storage*>(from.data) + row * from.row_stride + col;
    if (count >= Width) {
      Vector<Type, Width> vector;
      vector.load(at);
      return widen(vector, values);
    }
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
    if (count >= Width) return narrow<Type>(values).store(at);
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

/// Reads at most `count` elements, exactly; the others become 0. Any type but I64. `Wide`: the rows hold wide runs
/// (holds_runs()).
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

/// Stores at most `count` elements, rounded to nearest even. Types f32, f16, bf16, e4m3 and e5m2.
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

/// Stores a vector at (row, col) of a row that holds wide runs, rounded to nearest even. The same types as store_run().
template <int Type>
__device__ inline void store_vector(const float (&values)[kVectorWidth<Type>], const Elements& to, std::int64_t row,
                                    std::int64_t col) {
  const std::int64_t at = to.index(row, col);
  if constexpr (Type >= 0) {
    narrow<static_cast<DType>(Type)>(values).store(to.data, at);
  } else {
    switch (to.dtype) {
      case DType::kF32: return narrow<DType::kF32>(values).store(to.data, at);
      case DType::kF16: return narrow<DType::kF16>(values).store(to.data, at);
      case DType::kBF16: return narrow<DType::kBF16>(values).store(to.data, at);
      default: break;
    }
    if constexpr (Type == kAnyTypes) {
      if (to.dtype == DType::kE4M3) narrow<DType::kE4M3>(values).store(to.data, at);
      if (to.dtype == DType::kE5M2) narrow<DType::kE5M2>(values).store(to.data, at);
    }
  }
}

}  // namespace fp8lab::cuda

#pragma once

#include <cstdint>

#include "backend/cuda/device/elements.cuh"
#include "tensor/view.h"

// Single elements of matrices whose type and strides are known only at run time: the path for every layout.
namespace fp8lab::cuda {

template <class T>
__device__ T* elements(const MatrixView& matrix) {
  return reinterpret_cast<T*>(matrix.data);
}

/// Reads an element of type f32, f16, bf16, e4m3 or e5m2, exactly.
__device__ inline float load_element(const MatrixView& matrix, std::int64_t row, std::int64_t col) {
  const std::int64_t index = row * matrix.row_stride + col * matrix.col_stride;
  switch (matrix.dtype) {
    case DType::kF32: return elements<const float>(matrix)[index];
    case DType::kBF16: return Element<DType::kBF16>::load(elements<const BFloat16>(matrix)[index]);
    case DType::kF16: return Element<DType::kF16>::load(elements<const Half>(matrix)[index]);
    case DType::kE4M3: return Element<DType::kE4M3>::load(elements<const std::uint8_t>(matrix)[index]);
    default: return Element<DType::kE5M2>::load(elements<const std::uint8_t>(matrix)[index]);
  }
}

/// Stores an element rounded to nearest even (FP8: saturating); the same types.
__device__ inline void store_element(const MatrixView& matrix, std::int64_t row, std::int64_t col, float value) {
  const std::int64_t index = row * matrix.row_stride + col * matrix.col_stride;
  switch (matrix.dtype) {
    case DType::kF32: elements<float>(matrix)[index] = value; return;
    case DType::kBF16: elements<BFloat16>(matrix)[index] = Element<DType::kBF16>::store(value); return;
    case DType::kF16: elements<Half>(matrix)[index] = Element<DType::kF16>::store(value); return;
    case DType::kE4M3: elements<std::uint8_t>(matrix)[index] = Element<DType::kE4M3>::store(value); return;
    default: elements<std::uint8_t>(matrix)[index] = Element<DType::kE5M2>::store(value); return;
  }
}

}  // namespace fp8lab::cuda

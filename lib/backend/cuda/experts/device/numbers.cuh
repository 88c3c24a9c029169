#pragma once

#include <cstdint>

#include "backend/cuda/context.h"
#include "tensor/view.h"

// Matrices of numbers in 32 bits with any strides: choices, rows and weights.
namespace fp8lab::cuda {

template <class T>
struct Entries {
  T* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;

  __device__ T& at(std::int64_t row, std::int64_t col) const { return data[row * row_stride + col * col_stride]; }
};
using Numbers = Entries<std::int32_t>;
using Floats = Entries<float>;

inline Numbers numbers(const MatrixView& view) {
  return {.data = view.as<std::int32_t>(), .row_stride = view.row_stride, .col_stride = view.col_stride};
}
inline Floats floats(const MatrixView& view) {
  return {.data = view.as<float>(), .row_stride = view.row_stride, .col_stride = view.col_stride};
}

}  // namespace fp8lab::cuda

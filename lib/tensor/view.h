#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

// Non-owning views, as kernels see them. A tensor of any rank is viewed as the matrix [rows, cols] of shape.h.
namespace fp8lab {

/// Element (i, j) is at offset `i * row_stride + j * col_stride`, in elements, from `data`. Strides may be anything, 0
/// included.
struct MatrixView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;

  std::int64_t numel() const { return rows * cols; }
  bool contiguous() const { return (col_stride == 1 || cols <= 1) && (row_stride == cols || rows <= 1); }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  MatrixView transposed() const {
    return {
        .data = data, .dtype = dtype, .rows = cols, .cols = rows, .row_stride = col_stride, .col_stride = row_stride};
  }
  /// `count` rows from `first` on.
  MatrixView row_range(std::int64_t first, std::int64_t count) const {
    return transposed().columns(first, count).transposed();
  }
  /// `count` columns from `first` on.
  MatrixView columns(std::int64_t first, std::int64_t count) const {
    MatrixView part = *this;
    part.data += first * col_stride * static_cast<std::int64_t>(size_bytes(dtype));
    part.cols = count;
    return part;
  }
};

/// Inverse scales of a quantized matrix. The scale of element (i, j) is at offset `(i / block_rows) * row_stride + (j /
/// block_cols) * col_stride`, in elements, from `data`; per tensor (block_cols 0) there is one scale. A null `data`
/// means that the matrix is not quantized.
struct ScaleView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;  ///< kF32 or kE8M0
  std::int64_t block_rows = 0;
  std::int64_t block_cols = 0;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 0;
  /// Elements allocated, padding included; padding is kept zero.
  std::int64_t storage_elems = 0;

  bool per_tensor() const { return block_cols == 0; }
  /// The scales of the matrix from element (row, col) on, which begins a block. `storage_elems` still counts all of
  /// them.
  ScaleView from(std::int64_t row, std::int64_t col) const {
    if (data == nullptr || per_tensor()) return *this;
    ScaleView part = *this;
    part.data +=
        (row / block_rows * row_stride + col / block_cols * col_stride) * static_cast<std::int64_t>(size_bytes(dtype));
    return part;
  }
};

/// A matrix with or without scales: value(i, j) = values(i, j) * scale_inv(i, j).
struct OperandView {
  MatrixView values;
  ScaleView scales;

  bool quantized() const { return scales.data != nullptr; }
  /// `count` rows, or columns, from `first` on, which begins a block of scales.
  OperandView row_range(std::int64_t first, std::int64_t count) const {
    return {.values = values.row_range(first, count), .scales = scales.from(first, 0)};
  }
  OperandView columns(std::int64_t first, std::int64_t count) const {
    return {.values = values.columns(first, count), .scales = scales.from(0, first)};
  }
};

}  // namespace fp8lab

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
};

/// A matrix with or without scales: value(i, j) = values(i, j) * scale_inv(i, j).
struct OperandView {
  MatrixView values;
  ScaleView scales;

  bool quantized() const { return scales.data != nullptr; }
};

}  // namespace fp8lab

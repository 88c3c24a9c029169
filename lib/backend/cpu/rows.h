#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/view.h"

// How the dense kernels access memory: as runs of FP32 values, read from and rounded to whatever type a matrix stores.
// Each kernel is therefore one FP32 loop for every mix of types and strides, and every conversion is one vectorised
// loop next to it.
namespace fp8lab::cpu {

/// Reads elements (row, col) ... (row, col + count - 1) as FP32, exactly. Any type but I64.
void load(const MatrixView& matrix, std::int64_t row, std::int64_t col, std::int64_t count, float* out);
/// Stores FP32 values there, rounded to nearest even (FP8: saturating). Types f32, f16, bf16, e4m3 and e5m2.
void store(const float* values, std::int64_t count, const MatrixView& matrix, std::int64_t row, std::int64_t col);

/// A buffer of `count` floats that belongs to the calling thread; `slot` distinguishes buffers in use at the same time.
/// Buffers are kept from call to call, so their contents are undefined. Scratch is host memory only and must not appear
/// among a device's allocations: GPUs hold such values in registers.
float* scratch(int slot, std::int64_t count);
inline constexpr int kScratchSlots = 12;

/// Rows as FP32 values: read in place if the matrix is f32 with contiguous rows, else through `slot` of scratch.
class RowReader {
 public:
  RowReader(const MatrixView& matrix, int slot)
      : matrix_(matrix),
        in_place_(matrix.dtype == DType::kF32 && (matrix.col_stride == 1 || matrix.cols <= 1)),
        buffer_(in_place_ ? nullptr : scratch(slot, matrix.cols)) {}
  const float* operator()(std::int64_t row) const {
    if (in_place_) return matrix_.as<const float>() + row * matrix_.row_stride;
    load(matrix_, row, 0, matrix_.cols, buffer_);
    return buffer_;
  }

 private:
  MatrixView matrix_;
  bool in_place_;
  float* buffer_;
};

/// Element-wise kernels process at most this many elements at a time, so that everything they touch stays in cache.
inline constexpr std::int64_t kRun = 2048;

/// If all matrices, which have one shape, are contiguous, makes each of them one long row; else leaves them as they
/// are.
template <class... Views>
void flatten_if_contiguous(Views&... views) {
  if (!(views.contiguous() && ...)) return;
  const auto flatten = [](MatrixView& view) {
    view.cols = view.numel();
    view.rows = 1;
    view.row_stride = view.cols;
    view.col_stride = 1;
  };
  (flatten(views), ...);
}

/// Calls work(row, col, count) until every element of a matrix of this shape has been visited, in order.
template <class Work>
void for_each_run(const MatrixView& shape, const Work& work) {
  for (std::int64_t row = 0; row < shape.rows; ++row)
    for (std::int64_t col = 0; col < shape.cols; col += kRun)
      work(row, col, shape.cols - col < kRun ? shape.cols - col : kRun);
}

}  // namespace fp8lab::cpu

#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/view.h"

// How the dense kernels see memory: runs of FP32 values, read from and rounded to whatever a matrix stores. So each
// kernel is one FP32 loop, whatever the mix of types and strides, and every conversion is one vectorised loop beside
// it.
namespace fp8lab::cpu {

/// Values of elements (row, col) ... (row, col + count - 1), exactly. Any type but I64.
void load(const MatrixView& matrix, std::int64_t row, std::int64_t col, std::int64_t count, float* out);
/// The other way, rounded to nearest even (FP8: saturating). f32, f16, bf16, e4m3 and e5m2.
void store(const float* values, std::int64_t count, const MatrixView& matrix, std::int64_t row, std::int64_t col);

/// `count` floats that stay with the calling thread: `slot` tells apart those in use at once. Kept from call to call,
/// hence contents are whatever the last user left. Scratch is host-only: GPUs hold such values in registers, so it
/// must not appear among a device's allocations.
float* scratch(int slot, std::int64_t count);
inline constexpr int kScratchSlots = 12;

/// A row of FP32 values: read in place where the matrix holds just that, else through `slot` of scratch.
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

/// Kernels that treat every element by itself take at most this many at a time, so that all they touch stays in cache.
inline constexpr std::int64_t kRun = 2048;

/// Sees matrices of one shape as one long row each if all are contiguous, else leaves them as they are.
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

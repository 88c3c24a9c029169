#include "backend/cpu/quantize/quantize_source.h"

#include "backend/cpu/loops.h"
#include "backend/cpu/rows.h"
#include "core/float_bits.h"

namespace fp8lab::cpu {

SourceRows::SourceRows(const MatrixView& matrix, const QuantizeLoops& loops, int slot)
    : matrix_(matrix), loops_(loops), slot_(slot), access_(Access::kConverted) {
  const bool loops_take_it = matrix.dtype == DType::kBF16 || matrix.dtype == DType::kF32;
  if (loops_take_it && (matrix.col_stride == 1 || matrix.cols <= 1))
    access_ = Access::kInPlace;
  else if (matrix.dtype == DType::kBF16 && matrix.row_stride == 1)
    access_ = Access::kTransposed;
}

void SourceRows::open(std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols) {
  first_row_ = row;
  first_col_ = col;
  if (access_ == Access::kInPlace) return;
  // A cache line more than the columns: rows a power of two apart would compete for the same few sets of the cache.
  copy_stride_ = cols + 32;
  copy_ = scratch(slot_, rows * copy_stride_);  // counted in floats, which is more than 16-bit elements need
  if (access_ == Access::kTransposed) {
    const std::uint16_t* from = matrix_.as<const std::uint16_t>() + row + col * matrix_.col_stride;
    loops_.transpose({.in = from,
                      .in_stride = matrix_.col_stride,
                      .rows = cols,
                      .cols = rows,
                      .out = reinterpret_cast<std::uint16_t*>(copy_),
                      .out_stride = copy_stride_});
    return;
  }
  for (std::int64_t i = 0; i < rows; ++i) load(matrix_, row + i, col, cols, copy_ + i * copy_stride_);
}

Elements SourceRows::operator()(std::int64_t row) const {
  const std::int64_t offset = (row - first_row_) * copy_stride_;
  switch (access_) {
    case Access::kTransposed: return {.bf16 = reinterpret_cast<const std::uint16_t*>(copy_) + offset};
    case Access::kConverted: return {.f32 = copy_ + offset};
    case Access::kInPlace: break;
  }
  const std::int64_t first = row * matrix_.row_stride + first_col_ * matrix_.col_stride;
  if (matrix_.dtype == DType::kBF16) return {.bf16 = matrix_.as<const std::uint16_t>() + first};
  return {.f32 = matrix_.as<const float>() + first};
}

std::uint32_t amax_magnitude(const MatrixView& matrix) {
  const QuantizeLoops& loops = cpu::loops().quantize;
  // An amax does not depend on the order of elements, so they are read in memory order.
  MatrixView view = matrix.col_stride != 1 && matrix.row_stride == 1 ? matrix.transposed() : matrix;
  flatten_if_contiguous(view);
  SourceRows source(view, loops, 0);
  std::uint32_t amax = 0;
  for_each_run(view, [&](std::int64_t row, std::int64_t col, std::int64_t count) {
    source.open(row, 1, col, count);
    const Elements elements = source(row);
    if (elements.bf16 != nullptr)
      loops.amax_bf16(elements.bf16, count, count, &amax);
    else
      loops.amax_f32(elements.f32, count, count, &amax);
  });
  return amax;
}

void measure(const MatrixView& matrix, float* amax) {
  if (amax != nullptr) *amax = float_from_bits(amax_magnitude(matrix));
}

}  // namespace fp8lab::cpu

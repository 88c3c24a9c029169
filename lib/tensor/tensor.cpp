#include "tensor/tensor.h"

#include <fmt/core.h>

#include <utility>

#include "core/check.h"

namespace fp8lab {

Tensor::Tensor(BufferRef buffer, const TensorSpec& spec)
    : buffer_(std::move(buffer)), shape_(spec.shape), dtype_(spec.dtype), row_stride_(spec.shape.cols()) {
  if (spec.bytes() > buffer_.bytes())
    fail(fmt::format("Tensor: shape {} of {} needs {} B, the block has {} B", to_string(shape_), name(dtype_),
                     spec.bytes(), buffer_.bytes()));
}

std::byte* Tensor::first_byte() const {
  return buffer_.data() + offset_elems_ * static_cast<std::int64_t>(size_bytes(dtype_));
}

MatrixView Tensor::view() const {
  return {.data = first_byte(),
          .dtype = dtype_,
          .rows = rows(),
          .cols = cols(),
          .row_stride = row_stride_,
          .col_stride = col_stride_};
}

Tensor Tensor::reshaped(const Shape& shape) const {
  if (shape.numel() != numel() || !contiguous())
    fail(fmt::format("reshape: {} {} cannot be seen as {}", contiguous() ? "" : "non-contiguous", to_string(shape_),
                     to_string(shape)));
  Tensor result = *this;
  result.shape_ = shape;
  result.row_stride_ = shape.cols();
  result.col_stride_ = 1;
  return result;
}

Tensor Tensor::columns(std::int64_t begin, std::int64_t count) const {
  if (begin < 0 || count < 0 || begin + count > cols())
    fail(fmt::format("columns: [{}, {}) is outside {}", begin, begin + count, to_string(shape_)));
  Tensor result = *this;
  result.shape_ = {rows(), count};
  result.offset_elems_ += begin * col_stride_;
  return result;
}

Tensor Tensor::row_range(std::int64_t begin, std::int64_t count) const {
  if (begin < 0 || count < 0 || begin + count > rows())
    fail(fmt::format("row_range: [{}, {}) is outside {}", begin, begin + count, to_string(shape_)));
  Tensor result = *this;
  result.shape_ = {count, cols()};
  result.offset_elems_ += begin * row_stride_;
  return result;
}

Tensor Tensor::transposed() const {
  Tensor result = *this;
  result.shape_ = {cols(), rows()};
  std::swap(result.row_stride_, result.col_stride_);
  return result;
}

Tensor Tensor::held_by(HolderId holder) const {
  Tensor result;
  result.buffer_ = buffer_.held_by(holder);
  result.shape_ = shape_;
  result.dtype_ = dtype_;
  result.offset_elems_ = offset_elems_;
  result.row_stride_ = row_stride_;
  result.col_stride_ = col_stride_;
  return result;
}

}  // namespace fp8lab

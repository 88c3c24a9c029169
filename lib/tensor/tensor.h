#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/shape.h"
#include "memory/memory.h"
#include "tensor/view.h"

namespace fp8lab {

struct TensorSpec {
  Shape shape;
  DType dtype = DType::kF32;

  std::int64_t bytes() const { return shape.numel() * static_cast<std::int64_t>(size_bytes(dtype)); }
};

/// A handle on a block of memory viewed as an array, row-major unless narrowed or transposed. Copying a handle copies
/// its claim on the block, with the same holder; it never copies elements. A const handle does not make its elements
/// const.
class Tensor {
 public:
  Tensor() = default;
  /// A contiguous tensor at the start of `buffer`.
  Tensor(BufferRef buffer, const TensorSpec& spec);

  explicit operator bool() const { return static_cast<bool>(buffer_); }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  std::int64_t numel() const { return shape_.numel(); }
  std::int64_t rows() const { return shape_.rows(); }
  std::int64_t cols() const { return shape_.cols(); }
  /// Bytes of the elements of this view; the block behind it may be larger.
  std::int64_t bytes() const { return numel() * static_cast<std::int64_t>(size_bytes(dtype_)); }
  TensorSpec spec() const { return {shape_, dtype_}; }
  bool contiguous() const { return view().contiguous(); }

  MatrixView view() const;
  /// The elements one below the other, as a matrix of one column; contiguous tensors only.
  MatrixView as_column() const { return reshaped(Shape{numel(), 1}).view(); }
  OperandView operand() const { return {.values = view(), .scales = {}}; }
  /// Host address of the first element; only for devices whose memory the host can read.
  template <class T>
  T* data() const {
    return reinterpret_cast<T*>(first_byte());
  }

  /// The same elements under another shape; contiguous tensors only.
  Tensor reshaped(const Shape& shape) const;
  /// Columns [begin, begin + count) of the matrix [rows(), cols()]; the result has rank 2.
  Tensor columns(std::int64_t begin, std::int64_t count) const;
  /// Rows [begin, begin + count) of the matrix [rows(), cols()]; the result has rank 2.
  Tensor row_range(std::int64_t begin, std::int64_t count) const;
  /// The transposed matrix as a view; no element moves.
  Tensor transposed() const;

  /// A second handle on the same block, with another holder.
  Tensor held_by(HolderId holder) const;
  HolderId holder() const { return buffer_.holder(); }
  /// Gives this handle's claim another holder.
  void rename(HolderId holder) { buffer_.rename(holder); }
  const BufferRef& buffer() const { return buffer_; }

 private:
  std::byte* first_byte() const;

  BufferRef buffer_;
  Shape shape_;
  DType dtype_ = DType::kF32;
  std::int64_t offset_elems_ = 0;
  std::int64_t row_stride_ = 0;
  std::int64_t col_stride_ = 1;
};

}  // namespace fp8lab

#pragma once

#include <cstdint>
#include <vector>

#include "core/shape.h"
#include "recipe/recipe.h"
#include "tensor/tensor.h"

namespace fp8lab {

/// Storage of the inverse scales of a rows x cols matrix under a format, padding included:
///   per tensor     f32  [1]
///   1 x 32, E8M0   e8m0 [round_up(rows, 128), round_up(ceil(cols / 32), 4)]
///   1 x 128, FP32  f32  [ceil(cols / 128), round_up(rows, 4)]   (outer dimension contiguous, as cuBLASLt needs it)
///   128 x 128      f32  [ceil(rows / 128), round_up(ceil(cols / 128), 4)]
struct ScaleLayout {
  TensorSpec spec;
  std::int64_t row_stride = 0;  ///< elements from one block row to the next
  std::int64_t col_stride = 0;
};
ScaleLayout scale_layout(const QuantFormat& format, std::int64_t rows, std::int64_t cols);

/// Storage of one orientation of a rows x cols matrix. Its scales have the strides of the GEMM operand that the
/// orientation serves as.
struct OrientationLayout {
  TensorSpec data;
  ScaleLayout scales;
};
/// Quantized data [rows, cols], with the scales of scale_layout().
OrientationLayout rowwise_layout(const QuantFormat& format, std::int64_t rows, std::int64_t cols);
/// The row-wise layout of the transposed matrix. Under E8M0 data and scales are transposed back, so that rows are
/// contiguous in both orientations: quantized data [rows, cols], scales e8m0 [round_up(ceil(rows / 32), 4),
/// round_up(cols, 128)].
OrientationLayout columnwise_layout(const QuantFormat& format, std::int64_t rows, std::int64_t cols);

/// One orientation of a quantized matrix: quantized data and its inverse scales.
struct QuantizedOrientation {
  Tensor data;
  Tensor scale_inv;

  explicit operator bool() const { return static_cast<bool>(data); }
};

/// A matrix in eight bits, with row-wise data, column-wise data or both. Row-wise data is [rows, cols]. Column-wise
/// data is stored transposed, [cols, rows], with blocks along its own rows, so that every product reads its operands
/// along the reduction axis. Under E8M0 scales column-wise data is [rows, cols] with blocks down the columns, so that a
/// shard of the rows is contiguous in either orientation. Per-tensor orientations share one scale block.
///
/// A tensor without its buffers is a shell: it keeps its format and shape.
class QuantizedTensor {
 public:
  QuantizedTensor() = default;
  QuantizedTensor(const Shape& shape, const QuantFormat& format) : shape_(shape), format_(format) {}

  const Shape& shape() const { return shape_; }
  std::int64_t rows() const { return shape_.rows(); }
  std::int64_t cols() const { return shape_.cols(); }
  const QuantFormat& format() const { return format_; }

  QuantizedOrientation& rowwise() { return rowwise_; }
  const QuantizedOrientation& rowwise() const { return rowwise_; }
  QuantizedOrientation& columnwise() { return columnwise_; }
  const QuantizedOrientation& columnwise() const { return columnwise_; }
  bool empty() const { return !rowwise_ && !columnwise_; }

  /// The matrix as a GEMM operand [rows, cols] read along its columns. Needs the row-wise orientation.
  OperandView rowwise_operand() const;
  /// The transposed matrix as an operand [cols, rows] read along its columns, in whichever order they are stored. This
  /// is the column-wise orientation or, if `may_reuse_rowwise` (the GPU multiplies either orientation and the format is
  /// its own transpose), a transposed view of the row-wise one.
  OperandView columnwise_operand(bool may_reuse_rowwise) const;

  /// Bytes of all buffers owned; a shared buffer counts once.
  std::int64_t bytes() const;
  void drop_rowwise() { rowwise_ = {}; }
  void drop_columnwise() { columnwise_ = {}; }
  void clear();
  /// clear() except for a scale per tensor, which other tensors may share.
  void clear_data();

  /// Moves every buffer out, in a fixed order, and leaves an empty shell. Absent buffers are skipped.
  std::vector<Tensor> take_buffers();
  /// Returns the same buffers, which this tensor also keeps.
  std::vector<Tensor> share_buffers();
  /// Puts back the buffers that take_buffers() or share_buffers() of this tensor returned last.
  void put_buffers(std::vector<Tensor> buffers);
  /// Gives the claims on all buffers another holder.
  void rename(HolderId holder);

 private:
  Shape shape_;
  QuantFormat format_;
  QuantizedOrientation rowwise_;
  QuantizedOrientation columnwise_;
  unsigned taken_ = 0;  // bit mask of the four buffers that take_buffers() or share_buffers() returned last
};

/// The scales of a rows x cols orientation under `format`, as kernels see them.
ScaleView scale_view(const Tensor& scale_inv, const QuantFormat& format, std::int64_t rows, std::int64_t cols);

}  // namespace fp8lab

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/device.h"
#include "behavior/behaviors.h"
#include "ops/quantize.h"
#include "tensor/quantized_tensor.h"

// Tensor operations on quantized storage for sharding: they move bytes and do not compute values again. "Rows" are
// dimension 0 of the matrix [rows, cols]. The rules come from TransformerEngine#2245, applied to the matrix units'
// own layouts of scales.
namespace fp8lab {

/// The matrix [rows, cols] as `dtype`, from whichever orientation is present.
Tensor dequantize_matrix(Device& device, const QuantizedTensor& q, DType dtype, HolderId holder);

/// The row-wise scales of a tensor in blocks, without padding, as a view in place: [blocks down, blocks across].
Tensor rowwise_scales(const QuantizedTensor& q);

/// Makes the column-wise orientation from the row-wise one by moving bytes: quantized data are transposed unchanged;
/// the scale of a full tensor is shared, scales of blocks are transposed, padding included. Only for formats whose
/// column-wise orientation is the transpose (columnwise_is_transpose()).
QuantizedOrientation make_columnwise(Device& device, const QuantizedTensor& q, HolderId holder);

/// A copy of the column-wise orientation of square blocks in the order of the matrix: quantized data [rows, cols], and
/// scales [blocks down, blocks across] without padding. In this order the rows of a shard are contiguous.
QuantizedOrientation untransposed_columnwise(Device& device, const QuantizedTensor& q, HolderId holder);
/// The column-wise orientation of which `untransposed` is the copy.
QuantizedOrientation columnwise_from_untransposed(Device& device, const QuantFormat& format,
                                                  const QuantizedOrientation& untransposed, HolderId holder);

/// False if a split of a tensor of this format gives dequantized values, because without the fix MXFP8 has no split of
/// its own.
bool splits_in_eight_bits(const Behaviors& behaviors, const QuantFormat& format);

/// Why a rows x cols matrix of this format cannot be cut at `offsets` (0, ..., rows, not decreasing; empty shards are
/// allowed); empty if it can. No block may belong to two shards, in either orientation: per-tensor matrices may be cut
/// anywhere, others after multiples of 32 rows (microscaling) or 128. A parameter that cannot be cut is gathered in
/// high precision.
std::string shard_refusal(const QuantFormat& format, std::int64_t rows, std::int64_t cols,
                          std::span<const std::int64_t> offsets);

/// A shard: rows [begin, begin + count), and the orientations that it gets if the unsharded parameter has them.
struct RowCut {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  Orientations orientations{.rowwise = true, .columnwise = true};
  HolderId holder = 0;
};
/// The rows as a tensor [count, cols] of its own, scales included. It shares nothing with the unsharded parameter,
/// which may therefore be freed. The scale of a full tensor is copied; padding of block scales is zero. Throws Error
/// with the text of shard_refusal().
QuantizedTensor cut_rows(Device& device, const Behaviors& behaviors, const QuantizedTensor& unsharded,
                         const RowCut& cut);

/// cut_rows() between each two neighbours of `offsets`; `like.begin` and `like.count` are unused.
std::vector<QuantizedTensor> split_rows(Device& device, const Behaviors& behaviors, const QuantizedTensor& unsharded,
                                        std::span<const std::int64_t> offsets, const RowCut& like);

/// A tensor like `unsharded`, but with `rowwise` as its row-wise orientation and with the rows of that. It has no
/// column-wise orientation: the caller that has one for these rows sets it.
QuantizedTensor make_like(const Behaviors& behaviors, const QuantizedTensor& unsharded,
                          const QuantizedOrientation& rowwise);

/// Zeros with the format and the orientations of `q` as [rows, q.cols()], in memory of their own. The scale of a full
/// tensor is a copy of q's; scales of blocks are zero, padding included.
QuantizedTensor new_zeros(Device& device, const Behaviors& behaviors, const QuantizedTensor& q, std::int64_t rows,
                          HolderId holder);

/// Copies `from` into the orientations that `to` has; shapes must be equal. Copies bytes if formats are equal and
/// `from` has every orientation that `to` has; otherwise dequantizes and casts again with `quantizer` (which is unused,
/// and may be null, if bytes are copied). Returns true if bytes were copied. Casting again is not equivalent: if
/// scales are powers of two other than the OCP floor, some blocks get other bytes (3.5 % of unit Gaussian ones when
/// microscales are rounded up).
bool copy_rows(Device& device, const Behaviors& behaviors, const QuantizedTensor& from, QuantizedTensor& to,
               const Quantizer* quantizer);

struct RowSlice {
  QuantizedTensor view;  ///< the rows in place; empty if they cannot be viewed
  Tensor values;         ///< the rows in high precision if `view` is empty
  std::string reason;    ///< why `view` is empty
};
/// Rows [begin, begin + count) as a view in place, if their scales, padding included, are contiguous in the storage of
/// `q`: always for all rows, for any rows under one scale, and for multiples of 128 if the orientation is not stored
/// transposed. `cut.orientations` is unused.
RowSlice slice_rows(Device& device, const Behaviors& behaviors, const QuantizedTensor& q, const RowCut& cut,
                    DType dtype);

/// The same elements under another shape, sharing q's memory. Changing the last dimension is allowed for per-tensor
/// formats only, and the view then has no column-wise orientation.
QuantizedTensor view_as(const QuantizedTensor& q, const Shape& shape);

}  // namespace fp8lab

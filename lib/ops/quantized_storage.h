#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/device.h"
#include "behavior/behaviors.h"
#include "ops/quantize.h"
#include "tensor/quantized_tensor.h"

// Tensor operations on quantized storage, as sharding uses them: bytes move, values are not computed anew. "Rows" are
// dimension 0 of the matrix [rows, cols]. Rules: TransformerEngine#2245, for the matrix units' own layouts of scales.
namespace fp8lab {

/// The matrix [rows, cols] as `dtype`, from whichever orientation is there.
Tensor dequantize_matrix(Device& device, const QuantizedTensor& q, DType dtype, HolderId holder);

/// The column-wise orientation made from the row-wise one by moving bytes: quantized data transposed as they are; the
/// scale of an unsharded tensor is shared, those of blocks are transposed with their padding. Only formats whose
/// column-wise orientation is the transpose (columnwise_is_transpose()).
QuantizedOrientation make_columnwise(Device& device, const QuantizedTensor& q, HolderId holder);

/// Why a rows x cols matrix of this format cannot be cut at `offsets` (0, ..., rows, not falling; empty shards are
/// fine), in words; empty if it can. No block may belong to two shards, in either orientation: per-tensor matrices may
/// be cut anywhere, others after multiples of 32 rows (microscaling) or 128. Who is refused gathers in high precision.
std::string shard_refusal(const QuantFormat& format, std::int64_t rows, std::int64_t cols,
                          std::span<const std::int64_t> offsets);

/// A shard [begin, begin + count) of the rows, and which orientations it is to have where the unsharded parameter has
/// them.
struct RowCut {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  Orientations orientations{.rowwise = true, .columnwise = true};
  HolderId holder = 0;
};
/// The rows as a tensor [count, cols] of its own, scales included: nothing is shared with the unsharded parameter, so
/// the entire may go. The scale of a full tensor is copied; padding of block scales is zero. Throws Error with
/// shard_refusal()'s words.
QuantizedTensor cut_rows(Device& device, const Behaviors& behaviors, const QuantizedTensor& unsharded,
                         const RowCut& cut);

/// cut_rows() between each two neighbours of `offsets`; `like.begin` and `like.count` are unused.
std::vector<QuantizedTensor> split_rows(Device& device, const Behaviors& behaviors, const QuantizedTensor& unsharded,
                                        std::span<const std::int64_t> offsets, const RowCut& like);

/// What else `unsharded` is, with `rowwise` as its row-wise orientation and the rows that this one has. No column-wise
/// orientation: whoever has one for these rows sets it.
QuantizedTensor make_like(const Behaviors& behaviors, const QuantizedTensor& unsharded,
                          const QuantizedOrientation& rowwise);

/// Zeros of the format and the orientations of `q` as [rows, q.cols()], in memory of their own. The scale of a full
/// tensor is a copy of q's; those of blocks are zero, padding included.
QuantizedTensor new_zeros(Device& device, const Behaviors& behaviors, const QuantizedTensor& q, std::int64_t rows,
                          HolderId holder);

/// Copies `from` into what `to` has, shapes being equal: bytes where formats are equal and `from` has every orientation
/// that `to` has, else values, cast by `quantizer` (unused, and may be null, where bytes are copied). True if bytes
/// were copied. Casting again is not the same: where scales are powers of two other than the OCP floor, some blocks get
/// other bytes (3.5 % of Gaussian ones when microscales are rounded up).
bool copy_rows(Device& device, const Behaviors& behaviors, const QuantizedTensor& from, QuantizedTensor& to,
               const Quantizer* quantizer);

struct RowSlice {
  QuantizedTensor view;  ///< the rows where they lie, or empty:
  Tensor values;         ///< then the same in high precision
  std::string reason;    ///< and why
};
/// Rows [begin, begin + count) seen where they lie if their scales, padding included, are a stretch of the unsharded
/// parameter's: always for the unsharded parameter, for any rows under one scale, for multiples of 128 if the
/// orientation is not stored transposed. `cut.orientations` is unused.
RowSlice slice_rows(Device& device, const Behaviors& behaviors, const QuantizedTensor& q, const RowCut& cut,
                    DType dtype);

/// The same elements under another shape, sharing q's memory. A change of the last dimension is for per-tensor formats
/// only and leaves the column-wise orientation behind.
QuantizedTensor view_as(const Behaviors& behaviors, const QuantizedTensor& q, const Shape& shape);

}  // namespace fp8lab

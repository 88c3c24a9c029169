#include "ops/quantized_storage.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/check.h"
#include "ops/elementwise.h"
#include "ops/rewrite.h"

namespace fp8lab {
namespace {

constexpr bool kRowwise = false;
constexpr bool kColumnwise = true;

const QuantizedOrientation& orientation_of(const QuantizedTensor& q, bool columnwise) {
  return columnwise ? q.columnwise() : q.rowwise();
}
QuantizedOrientation& orientation_of(QuantizedTensor& q, bool columnwise) {
  return columnwise ? q.columnwise() : q.rowwise();
}

bool stored_transposed(const QuantFormat& format, bool columnwise) {
  return columnwise && format.columnwise_stored_transposed();
}

OrientationLayout layout_of(const QuantFormat& format, bool columnwise, std::int64_t rows, std::int64_t cols) {
  return columnwise ? columnwise_layout(format, rows, cols) : rowwise_layout(format, rows, cols);
}

/// True if rows of the matrix are rows of the orientation's storage, scales included.
bool scales_by_rows(const QuantFormat& format, bool columnwise) {
  if (columnwise) return !format.columnwise_stored_transposed();
  return rowwise_layout(format, 1, 1).scales.row_stride != 1;
}

/// An orientation's data as the matrix [rows, cols].
Tensor data_matrix(const QuantizedTensor& q, bool columnwise) {
  const Tensor& data = orientation_of(q, columnwise).data;
  if (stored_transposed(q.format(), columnwise)) return data.transposed();
  return data.shape().rank() == 2 ? data : data.reshaped({q.rows(), q.cols()});
}

/// An orientation's scales without padding, as a matrix with one element for each block of the matrix [rows, cols]:
/// blocks down, blocks across.
Tensor scale_matrix(const QuantizedTensor& q, bool columnwise) {
  const QuantFormat& format = q.format();
  const ScaleLayout layout = layout_of(format, columnwise, q.rows(), q.cols()).scales;
  const Tensor& stored = orientation_of(q, columnwise).scale_inv;
  // The strides say how the operand's scales are stored; the column-wise operand is the transposed matrix.
  const bool transpose = (layout.row_stride == 1) != columnwise;
  const std::int64_t down = columnwise ? format.block_cols : format.block_rows;
  const std::int64_t across = columnwise ? format.block_rows : format.block_cols;
  return (transpose ? stored.transposed() : stored)
      .row_range(0, ceil_div(q.rows(), down))
      .columns(0, ceil_div(q.cols(), across));
}

const Tensor& tensor_scale(const QuantizedTensor& q) { return (q.rowwise() ? q.rowwise() : q.columnwise()).scale_inv; }

Tensor copy_of(Device& device, const Tensor& tensor, HolderId holder) {
  const Tensor copy = device.allocate(tensor.spec(), holder);
  copy_into(device, tensor, copy);
  return copy;
}

/// Allocates an orientation of `shape` [rows, cols]: uninitialised quantized data, and zeroed scales of blocks or the
/// shared scale of a full tensor.
QuantizedOrientation allocate_orientation(Device& device, const QuantFormat& format, bool columnwise,
                                          const Shape& shape, const Tensor& shared_scale, HolderId holder) {
  const OrientationLayout layout = layout_of(format, columnwise, shape.rows(), shape.cols());
  QuantizedOrientation orientation;
  orientation.data = device.allocate(layout.data, holder);
  if (format.per_tensor()) {
    orientation.scale_inv = shared_scale;
  } else {
    orientation.scale_inv = device.allocate(layout.scales.spec, holder);
    fill(device, orientation.scale_inv, 0.0f);
  }
  return orientation;
}

/// A cut must come after a multiple of this many rows: the height of a block, in either orientation.
std::int64_t rows_together(const QuantFormat& format) {
  return format.per_tensor() ? 1 : std::max(format.block_rows, format.block_cols);
}

/// Fills an orientation of `shard` from the rows of the unsharded parameter from `begin` on.
void fill_shard_orientation(Device& device, const QuantizedTensor& unsharded, QuantizedTensor& shard, bool columnwise,
                            std::int64_t begin) {
  copy_into(device, data_matrix(unsharded, columnwise).row_range(begin, shard.rows()), data_matrix(shard, columnwise));
  if (unsharded.format().per_tensor()) return;
  const Tensor to = scale_matrix(shard, columnwise);
  const std::int64_t block = columnwise ? unsharded.format().block_cols : unsharded.format().block_rows;
  copy_into(device, scale_matrix(unsharded, columnwise).row_range(begin / block, to.rows()), to);
}

std::string describe_stored(const QuantizedTensor& q) {
  return fmt::format("{} [{}, {}]{}", name(q.format().dtype), q.rows(), q.cols(),
                     q.format().per_tensor()
                         ? std::string(" scaled per tensor")
                         : fmt::format(" in blocks of {} x {}", q.format().block_rows, q.format().block_cols));
}

/// Why the rows cannot be viewed in place; empty if they can.
std::string slice_refusal(const QuantizedTensor& q, const RowCut& cut) {
  const QuantFormat& format = q.format();
  if (format.per_tensor() || (cut.begin == 0 && cut.count == q.rows())) return {};
  for (const bool columnwise : {kRowwise, kColumnwise})
    if (orientation_of(q, columnwise) && !scales_by_rows(format, columnwise))
      return fmt::format("slice: scales of {} are not stored by its rows", describe_stored(q));
  constexpr std::int64_t kMultiple = 128;  // rows after which padding may begin, in either orientation
  if (cut.begin % kMultiple != 0 || (cut.count % kMultiple != 0 && cut.begin + cut.count != q.rows()))
    return fmt::format("slice: rows [{}, {}) of {} begin or end inside {} rows whose scales lie together", cut.begin,
                       cut.begin + cut.count, describe_stored(q), kMultiple);
  return {};
}

QuantizedOrientation slice_orientation(const QuantizedTensor& q, bool columnwise, const RowCut& cut) {
  const QuantFormat& format = q.format();
  const Tensor rows = data_matrix(q, columnwise).row_range(cut.begin, cut.count);
  QuantizedOrientation orientation = {.data = stored_transposed(format, columnwise) ? rows.transposed() : rows,
                                      .scale_inv = orientation_of(q, columnwise).scale_inv};
  if (format.per_tensor() || cut.count == q.rows()) return orientation;
  const std::int64_t block = columnwise ? format.block_cols : format.block_rows;
  const Shape scales = layout_of(format, columnwise, cut.count, q.cols()).scales.spec.shape;
  orientation.scale_inv = orientation.scale_inv.row_range(cut.begin / block, scales.rows());
  return orientation;
}

}  // namespace

Tensor rowwise_scales(const QuantizedTensor& q) { return scale_matrix(q, kRowwise); }

Tensor dequantize_matrix(Device& device, const QuantizedTensor& q, DType dtype, HolderId holder) {
  check(!q.empty(), "dequantize_matrix: a quantized tensor without orientations");
  if (q.rowwise()) return dequantize(device, q.rowwise_operand(), dtype, holder);
  OperandView matrix = q.columnwise_operand(false);
  matrix.values = matrix.values.transposed();
  std::swap(matrix.scales.block_rows, matrix.scales.block_cols);
  std::swap(matrix.scales.row_stride, matrix.scales.col_stride);
  return dequantize(device, matrix, dtype, holder);
}

QuantizedOrientation make_columnwise(Device& device, const QuantizedTensor& q, HolderId holder) {
  const QuantFormat& format = q.format();
  if (!format.columnwise_is_transpose() || !q.rowwise())
    fail(fmt::format(
        "make_columnwise: {}{}; a transposed copy is for full tensors and square blocks, from the row-wise orientation",
        describe_stored(q), q.rowwise() ? "" : " without row-wise orientation"));
  QuantizedTensor made(q.shape(), format);
  const Tensor scale = format.per_tensor() ? q.rowwise().scale_inv.held_by(holder) : Tensor{};
  made.columnwise() = allocate_orientation(device, format, kColumnwise, {q.rows(), q.cols()}, scale, holder);
  copy_into(device, data_matrix(q, kRowwise), data_matrix(made, kColumnwise));
  if (!format.per_tensor()) copy_into(device, scale_matrix(q, kRowwise), scale_matrix(made, kColumnwise));
  return made.columnwise();
}

QuantizedOrientation untransposed_columnwise(Device& device, const QuantizedTensor& q, HolderId holder) {
  check(!q.format().per_tensor() && static_cast<bool>(q.columnwise()),
        "untransposed_columnwise: no column-wise blocks");
  return {.data = copy_of(device, data_matrix(q, kColumnwise), holder),
          .scale_inv = copy_of(device, scale_matrix(q, kColumnwise), holder)};
}

QuantizedOrientation columnwise_from_untransposed(Device& device, const QuantFormat& format,
                                                  const QuantizedOrientation& untransposed, HolderId holder) {
  QuantizedTensor made({untransposed.data.rows(), untransposed.data.cols()}, format);
  made.columnwise() = allocate_orientation(device, format, kColumnwise, made.shape(), {}, holder);
  copy_into(device, untransposed.data, data_matrix(made, kColumnwise));
  copy_into(device, untransposed.scale_inv, scale_matrix(made, kColumnwise));
  return made.columnwise();
}

std::string shard_refusal(const QuantFormat& format, std::int64_t rows, std::int64_t cols,
                          std::span<const std::int64_t> offsets) {
  if (offsets.size() < 2 || offsets.front() != 0 || offsets.back() != rows || !std::ranges::is_sorted(offsets))
    return fmt::format("offsets of shards must run from 0 to the {} rows without falling", rows);
  const std::int64_t multiple = rows_together(format);
  for (std::size_t i = 1; i < offsets.size(); ++i)
    if (offsets[i] % multiple != 0 && offsets[i] != rows)
      return fmt::format("{} [{}, {}] cannot be cut after {} rows; blocks of {} x {} ask for a multiple of {}",
                         name(format.dtype), rows, cols, offsets[i], format.block_rows, format.block_cols, multiple);
  return {};
}

bool splits_in_eight_bits(const Behaviors& behaviors, const QuantFormat& format) {
  return behaviors.split_in_eight_bits || format.scale_dtype() != DType::kE8M0;
}

QuantizedTensor make_like(const Behaviors& behaviors, const QuantizedTensor& unsharded,
                          const QuantizedOrientation& rowwise) {
  QuantizedTensor made({rowwise.data.rows(), rowwise.data.cols()}, unsharded.format());
  made.rowwise() = rowwise;
  if (!behaviors.drop_transpose_in_make_like) made.columnwise() = unsharded.columnwise();
  return made;
}

QuantizedTensor cut_rows(Device& device, const Behaviors& behaviors, const QuantizedTensor& unsharded,
                         const RowCut& cut) {
  const std::array<std::int64_t, 4> offsets = {0, cut.begin, cut.begin + cut.count, unsharded.rows()};
  const std::string refusal = shard_refusal(unsharded.format(), unsharded.rows(), unsharded.cols(), offsets);
  if (!refusal.empty()) fail("split: " + refusal);
  const bool cuts_columnwise = cut.orientations.columnwise && unsharded.columnwise();
  const bool cuts_rowwise = cut.orientations.rowwise && unsharded.rowwise();
  if (!cuts_rowwise && !cuts_columnwise)
    fail(fmt::format("split: {} has {} and the shards ask for none that can be cut", describe_stored(unsharded),
                     unsharded.empty()     ? "no orientation"
                     : unsharded.rowwise() ? "its row-wise orientation"
                                           : "its column-wise orientation only"));

  const Shape shape = {cut.count, unsharded.cols()};
  const Tensor scale =
      unsharded.format().per_tensor() ? copy_of(device, tensor_scale(unsharded), cut.holder) : Tensor{};
  const auto orientation = [&](bool columnwise) {
    return allocate_orientation(device, unsharded.format(), columnwise, shape, scale, cut.holder);
  };
  QuantizedTensor shard(shape, unsharded.format());
  if (cuts_rowwise) {
    shard = make_like(behaviors, unsharded, orientation(kRowwise));
    fill_shard_orientation(device, unsharded, shard, kRowwise, cut.begin);
  }
  if (cuts_columnwise) {
    shard.columnwise() = orientation(kColumnwise);
    fill_shard_orientation(device, unsharded, shard, kColumnwise, cut.begin);
  }
  return shard;
}

std::vector<QuantizedTensor> split_rows(Device& device, const Behaviors& behaviors, const QuantizedTensor& unsharded,
                                        std::span<const std::int64_t> offsets, const RowCut& like) {
  const std::string refusal = shard_refusal(unsharded.format(), unsharded.rows(), unsharded.cols(), offsets);
  if (!refusal.empty()) fail("split: " + refusal);
  std::vector<QuantizedTensor> shards;
  shards.reserve(offsets.size() - 1);
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    RowCut cut = like;
    cut.begin = offsets[i - 1];
    cut.count = offsets[i] - offsets[i - 1];
    shards.push_back(cut_rows(device, behaviors, unsharded, cut));
  }
  return shards;
}

QuantizedTensor new_zeros(Device& device, const Behaviors& behaviors, const QuantizedTensor& q, std::int64_t rows,
                          HolderId holder) {
  check(!q.empty(), "new_zeros: like a quantized tensor without orientations");
  Tensor scale;
  if (q.format().per_tensor())
    scale = behaviors.own_scale_in_new_zeros ? copy_of(device, tensor_scale(q), holder) : tensor_scale(q);
  QuantizedTensor zeros({rows, q.cols()}, q.format());
  for (const bool columnwise : {kRowwise, kColumnwise}) {
    if (!orientation_of(q, columnwise)) continue;
    orientation_of(zeros, columnwise) =
        allocate_orientation(device, q.format(), columnwise, zeros.shape(), scale, holder);
    fill(device, orientation_of(zeros, columnwise).data, 0.0f);
  }
  return zeros;
}

bool copy_rows(Device& device, const Behaviors& behaviors, const QuantizedTensor& from, QuantizedTensor& to,
               const Quantizer* quantizer) {
  if (from.rows() != to.rows() || from.cols() != to.cols())
    fail(fmt::format("copy: {} into {}; shapes must be equal", describe_stored(from), describe_stored(to)));
  const bool has_all = (from.rowwise() || !to.rowwise()) && (from.columnwise() || !to.columnwise());
  if (behaviors.copy_bytes_between_shards && has_all && from.format() == to.format()) {
    for (const bool columnwise : {kRowwise, kColumnwise}) {
      if (!orientation_of(to, columnwise)) continue;
      fill_shard_orientation(device, from, to, columnwise, 0);
    }
    if (to.format().per_tensor() && !to.empty()) copy_into(device, tensor_scale(from), tensor_scale(to));
    return true;
  }
  check(quantizer != nullptr, "copy: bytes cannot be copied here, and there is no quantizer to cast values with");
  const HolderId holder = device.holder(HolderKind::kWorkspace, "copy", "values");
  const Rewrite rewrite = {
      .value = dequantize_matrix(device, from, DType::kF32, holder), .to = &to, .quantizer = quantizer};
  quantize_in_place(device, std::span(&rewrite, 1));
  return false;
}

RowSlice slice_rows(Device& device, const Behaviors& behaviors, const QuantizedTensor& q, const RowCut& cut,
                    DType dtype) {
  if (cut.begin < 0 || cut.count < 0 || cut.begin + cut.count > q.rows())
    fail(fmt::format("slice: rows [{}, {}) of {}", cut.begin, cut.begin + cut.count, describe_stored(q)));
  RowSlice slice;
  // Reverted behaviour: every slice is a copy in high precision.
  slice.reason = behaviors.view_aligned_slices
                     ? slice_refusal(q, cut)
                     : "slice: rows are copied in high precision, because view_aligned_slices is reverted";
  if (!slice.reason.empty()) {
    slice.values = dequantize_matrix(device, q, dtype, cut.holder).row_range(cut.begin, cut.count);
    return slice;
  }
  slice.view = QuantizedTensor({cut.count, q.cols()}, q.format());
  for (const bool columnwise : {kRowwise, kColumnwise})
    if (orientation_of(q, columnwise)) orientation_of(slice.view, columnwise) = slice_orientation(q, columnwise, cut);
  return slice;
}

QuantizedTensor view_as(const QuantizedTensor& q, const Shape& shape) {
  const bool same_matrix = shape.rows() == q.rows() && shape.cols() == q.cols();
  if (shape.numel() != q.shape().numel() || (!same_matrix && !q.format().per_tensor()) ||
      (!same_matrix && !q.rowwise()))
    fail(fmt::format("view: {} as {}; {}", describe_stored(q), to_string(shape),
                     shape.numel() != q.shape().numel() ? "the numbers of elements differ"
                     : q.format().per_tensor()          ? "without row-wise orientation the last dimension must stay"
                                                        : "blocks lie along the last dimension, which must stay"));
  QuantizedTensor viewed(shape, q.format());
  if (q.rowwise())
    viewed.rowwise() = {
        .data = same_matrix ? q.rowwise().data : q.rowwise().data.reshaped({shape.rows(), shape.cols()}),
        .scale_inv = q.rowwise().scale_inv};
  if (same_matrix) viewed.columnwise() = q.columnwise();
  return viewed;
}

}  // namespace fp8lab

#include "fsdp/gathered_arrays.h"

namespace fp8lab {
namespace {

/// `layout_of(rows)` is the layout of the scale array of `rows` rows of the matrix. Blocks are `block_rows` rows high.
template <class LayoutOf>
GatheredArray gathered_scales(const LayoutOf& layout_of, std::int64_t block_rows, const RowSplit& split,
                              bool strip_padding) {
  GatheredArray scales;
  scales.content = Content::kScales;
  scales.unsharded = layout_of(split.rows());
  const std::int64_t row_bytes =
      scales.unsharded.shape.cols() * static_cast<std::int64_t>(size_bytes(scales.unsharded.dtype));
  if (strip_padding) {
    scales.offsets_bytes = split.padded_offsets(row_bytes, block_rows);
    scales.filled_rows = ceil_div(split.rows(), block_rows);
    return scales;
  }
  // Without stripping, each rank's array travels with its padding. The gathered array is then longer than the unsharded
  // parameter's own, and rows of later ranks land at rows that belong to others, unless no piece needs padding.
  const std::int64_t rows = layout_of(split.chunk()).shape.rows();
  for (int rank = 0; rank <= split.ranks(); ++rank) scales.offsets_bytes.push_back(rank * rows * row_bytes);
  scales.unsharded.shape = Shape{split.ranks() * rows, scales.unsharded.shape.cols()};
  scales.filled_rows = split.ranks() * rows;
  return scales;
}

GatheredArray gathered_data(const QuantFormat& format, const Shape& shape, const RowSplit& split) {
  return gathered_values({Shape{shape.rows(), shape.cols()}, format.dtype}, split);
}

}  // namespace

GatheredArray gathered_values(const TensorSpec& unsharded, const RowSplit& split) {
  GatheredArray values;
  values.unsharded = unsharded;
  values.offsets_bytes =
      split.padded_offsets(row_elems(unsharded.shape) * static_cast<std::int64_t>(size_bytes(unsharded.dtype)));
  values.filled_rows = split.rows();
  return values;
}

GatheredOrientation gathered_rowwise(const QuantFormat& format, const Shape& shape, const RowSplit& split,
                                     bool strip_scale_padding) {
  GatheredOrientation orientation;
  orientation.data = gathered_data(format, shape, split);
  if (format.per_tensor()) return orientation;
  orientation.scales =
      gathered_scales([&](std::int64_t rows) { return rowwise_layout(format, rows, shape.cols()).scales.spec; },
                      format.block_rows, split, strip_scale_padding);
  return orientation;
}

GatheredOrientation gathered_columnwise(const QuantFormat& format, const Shape& shape, const RowSplit& split,
                                        bool strip_scale_padding) {
  GatheredOrientation orientation;
  orientation.data = gathered_data(format, shape, split);
  orientation.scales =
      gathered_scales([&](std::int64_t rows) { return columnwise_layout(format, rows, shape.cols()).scales.spec; },
                      format.block_cols, split, strip_scale_padding);
  return orientation;
}

GatheredOrientation gathered_untransposed_columnwise(const QuantFormat& format, const Shape& shape,
                                                     const RowSplit& split) {
  const TensorSpec scales = {
      Shape{ceil_div(shape.rows(), format.block_rows), ceil_div(shape.cols(), format.block_cols)},
      format.scale_dtype()};
  GatheredOrientation orientation;
  orientation.data = gathered_data(format, shape, split);
  orientation.scales = {
      .unsharded = scales,
      .offsets_bytes = split.padded_offsets(scales.shape.cols() * static_cast<std::int64_t>(size_bytes(scales.dtype)),
                                            format.block_rows),
      .filled_rows = scales.shape.rows(),
      .content = Content::kScales};
  return orientation;
}

}  // namespace fp8lab

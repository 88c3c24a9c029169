#include "fsdp/gathered_arrays.h"

#include "ops/elementwise.h"

namespace fp8lab {
namespace {

/// Scales of shape `unsharded`, of blocks that are `block_rows` rows high. They travel without the padding of dim 0,
/// which ranks would otherwise receive at rows that belong to others.
GatheredArray gathered_scales(const TensorSpec& unsharded, std::int64_t block_rows, const RowSplit& split) {
  const std::int64_t row_bytes = unsharded.shape.cols() * static_cast<std::int64_t>(size_bytes(unsharded.dtype));
  return {.unsharded = unsharded,
          .offsets_bytes = split.padded_offsets(row_bytes, block_rows),
          .filled_rows = ceil_div(split.rows(), block_rows),
          .content = Content::kScales};
}

}  // namespace

GatheredArray gathered_values(const TensorSpec& unsharded, const RowSplit& split) {
  return {.unsharded = unsharded,
          .offsets_bytes =
              split.padded_offsets(row_elems(unsharded.shape) * static_cast<std::int64_t>(size_bytes(unsharded.dtype))),
          .filled_rows = split.rows()};
}

GatherLayout gather_layout(const TensorSpec& unsharded, const QuantFormat* format, const RowSplit& split) {
  if (format == nullptr) return {.values = gathered_values(unsharded, split)};
  const std::int64_t rows = unsharded.shape.rows(), cols = unsharded.shape.cols();
  const GatheredArray data = gathered_values({Shape{rows, cols}, format->dtype}, split);
  GatherLayout layout{.values = {}, .rowwise = GatheredOrientation{.data = data, .scales = {}}};
  if (!format->per_tensor())
    layout.rowwise->scales =
        gathered_scales(rowwise_layout(*format, rows, cols).scales.spec, format->block_rows, split);
  if (!format->columnwise_is_transpose())
    layout.columnwise = {
        .data = data,
        .scales = gathered_scales(columnwise_layout(*format, rows, cols).scales.spec, format->block_cols, split)};
  return layout;
}

Tensor followed_by_zeros(Device& device, const Tensor& tensor, const TensorSpec& row, HolderId holder) {
  const Tensor storage = device.allocate(row, holder);
  const std::int64_t elems = tensor.numel();
  copy_into(device, tensor.reshaped({1, elems}), storage.columns(0, elems));
  fill(device, storage.columns(elems, storage.numel() - elems), 0.0f);
  return storage;
}

Tensor padded(Device& device, const Tensor& tensor, std::int64_t bytes, HolderId holder) {
  const BufferRef& buffer = tensor.buffer();
  if (buffer.bytes() - (tensor.view().data - buffer.data()) >= bytes) return tensor;
  const TensorSpec row = {Shape{1, bytes / static_cast<std::int64_t>(size_bytes(tensor.dtype()))}, tensor.dtype()};
  return {followed_by_zeros(device, tensor, row, holder).buffer(), tensor.spec()};
}

void GatherParts::add(const GatheredArray& array, const Tensor& from, Tensor& to) {
  const DType dtype = array.unsharded.dtype;
  const Shape storage = {1, array.storage_bytes() / static_cast<std::int64_t>(size_bytes(dtype))};
  to = Tensor(device_.allocate({storage, dtype}, holder_).buffer(), array.unsharded);
  parts_.push_back(
      {.from = from.view().data, .to = to.view().data, .offsets_bytes = array.offsets_bytes, .content = array.content});
}

void GatherParts::add(const GatheredOrientation& orientation, const QuantizedOrientation& from,
                      QuantizedOrientation& to) {
  add(orientation.data, from.data, to.data);
  if (!orientation.scales_travel()) {
    to.scale_inv = from.scale_inv.held_by(holder_);
    return;
  }
  add(orientation.scales, from.scale_inv, to.scale_inv);
  const std::int64_t padding = to.scale_inv.rows() - orientation.scales.filled_rows;
  if (padding > 0) fill(device_, to.scale_inv.row_range(orientation.scales.filled_rows, padding), 0.0f);
}

}  // namespace fp8lab

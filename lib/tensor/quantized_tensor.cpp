#include "tensor/quantized_tensor.h"

#include <array>
#include <utility>

#include "core/check.h"

namespace fp8lab {
namespace {

std::array<Tensor*, 4> buffers_of(QuantizedOrientation& rowwise, QuantizedOrientation& columnwise) {
  return {&rowwise.data, &rowwise.scale_inv, &columnwise.data, &columnwise.scale_inv};
}

ScaleView view_of(const Tensor& scale_inv, const QuantFormat& format, const ScaleLayout& layout) {
  return {.data = scale_inv.view().data,
          .dtype = scale_inv.dtype(),
          .block_rows = format.block_rows,
          .block_cols = format.block_cols,
          .row_stride = layout.row_stride,
          .col_stride = layout.col_stride,
          .storage_elems = scale_inv.numel()};
}

}  // namespace

ScaleLayout scale_layout(const QuantFormat& format, std::int64_t rows, std::int64_t cols) {
  const DType dtype = format.scale_dtype();
  if (format.per_tensor()) return {.spec = {Shape{1}, dtype}, .row_stride = 0, .col_stride = 0};
  const std::int64_t block_rows = ceil_div(rows, format.block_rows);
  const std::int64_t block_cols = ceil_div(cols, format.block_cols);
  if (dtype == DType::kE8M0) {
    const std::int64_t pitch = round_up(block_cols, 4);
    return {.spec = {Shape{round_up(block_rows, 128), pitch}, dtype}, .row_stride = pitch, .col_stride = 1};
  }
  if (format.block_rows == 1) {
    const std::int64_t pitch = round_up(block_rows, 4);
    return {.spec = {Shape{block_cols, pitch}, dtype}, .row_stride = 1, .col_stride = pitch};
  }
  const std::int64_t pitch = round_up(block_cols, 4);
  return {.spec = {Shape{block_rows, pitch}, dtype}, .row_stride = pitch, .col_stride = 1};
}

OrientationLayout rowwise_layout(const QuantFormat& format, std::int64_t rows, std::int64_t cols) {
  return {.data = {Shape{rows, cols}, format.dtype}, .scales = scale_layout(format, rows, cols)};
}

OrientationLayout columnwise_layout(const QuantFormat& format, std::int64_t rows, std::int64_t cols) {
  OrientationLayout layout = rowwise_layout(format, cols, rows);
  if (format.columnwise_stored_transposed()) return layout;
  layout.data.shape = {rows, cols};
  Shape& scales = layout.scales.spec.shape;
  scales = {scales[1], scales[0]};
  layout.scales.row_stride = 1;
  layout.scales.col_stride = scales[1];
  return layout;
}

ScaleView scale_view(const Tensor& scale_inv, const QuantFormat& format, std::int64_t rows, std::int64_t cols) {
  return view_of(scale_inv, format, scale_layout(format, rows, cols));
}

OperandView QuantizedTensor::rowwise_operand() const {
  check(static_cast<bool>(rowwise_), "quantized tensor: the row-wise orientation is needed here and absent");
  return {.values = rowwise_.data.view(), .scales = scale_view(rowwise_.scale_inv, format_, rows(), cols())};
}

OperandView QuantizedTensor::columnwise_operand(bool may_reuse_rowwise) const {
  if (columnwise_) {
    const MatrixView stored = columnwise_.data.view();
    return {.values = format_.columnwise_stored_transposed() ? stored : stored.transposed(),
            .scales = view_of(columnwise_.scale_inv, format_, columnwise_layout(format_, rows(), cols()).scales)};
  }
  check(may_reuse_rowwise && format_.columnwise_is_transpose() && rowwise_,
        "quantized tensor: the column-wise orientation is needed here and absent");
  OperandView operand = rowwise_operand();
  operand.values = operand.values.transposed();
  std::swap(operand.scales.row_stride, operand.scales.col_stride);
  return operand;
}

std::int64_t QuantizedTensor::bytes() const {
  std::int64_t sum = 0;
  std::array<const Tensor*, 4> buffers = {&rowwise_.data, &rowwise_.scale_inv, &columnwise_.data,
                                          &columnwise_.scale_inv};
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    bool shared = false;
    for (std::size_t j = 0; j < i; ++j) shared |= *buffers[i] && buffers[i]->buffer().same_block(buffers[j]->buffer());
    if (*buffers[i] && !shared) sum += buffers[i]->bytes();
  }
  return sum;
}

void QuantizedTensor::clear() {
  drop_rowwise();
  drop_columnwise();
}

void QuantizedTensor::clear_data() {
  if (!format_.per_tensor()) return clear();
  rowwise_.data = {};
  columnwise_.data = {};
}

std::vector<Tensor> QuantizedTensor::share_buffers() {
  std::vector<Tensor> shared;
  taken_ = 0;
  const auto buffers = buffers_of(rowwise_, columnwise_);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (!*buffers[i]) continue;
    taken_ |= 1u << i;
    shared.push_back(*buffers[i]);
  }
  return shared;
}

std::vector<Tensor> QuantizedTensor::take_buffers() {
  std::vector<Tensor> taken = share_buffers();
  clear();
  return taken;
}

void QuantizedTensor::put_buffers(std::vector<Tensor> buffers) {
  std::size_t next = 0;
  const auto slots = buffers_of(rowwise_, columnwise_);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if ((taken_ & (1u << i)) == 0) continue;
    check(next < buffers.size(), "quantized tensor: fewer buffers put back than were taken");
    *slots[i] = std::move(buffers[next++]);
  }
  check(next == buffers.size(), "quantized tensor: more buffers put back than were taken");
}

void QuantizedTensor::rename(HolderId holder) {
  for (Tensor* buffer : buffers_of(rowwise_, columnwise_))
    if (*buffer) buffer->rename(holder);
}

}  // namespace fp8lab

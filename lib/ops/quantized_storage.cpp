#include "ops/quantized_storage.h"

#include "core/check.h"
#include "ops/elementwise.h"

namespace fp8lab {

QuantizedHalf make_columnwise(Device& device, const QuantizedTensor& tensor, HolderId holder) {
  const QuantFormat& format = tensor.format();
  check(format.columnwise_is_transpose() && tensor.rowwise(), "make_columnwise: there is no row-wise half to transpose");
  const HalfLayout layout = columnwise_layout(format, tensor.rows(), tensor.cols());
  QuantizedHalf half;
  half.codes = device.allocate(layout.codes, holder);
  copy_into(device, tensor.rowwise().codes.transposed(), half.codes);
  if (format.per_tensor()) {
    half.scale_inv = tensor.rowwise().scale_inv.held_by(holder);
    return half;
  }
  half.scale_inv = device.allocate(layout.scales.spec, holder);
  fill(device, half.scale_inv, 0.0f);
  const std::int64_t blocks = ceil_div(tensor.rows(), format.block_rows), others = ceil_div(tensor.cols(), format.block_cols);
  copy_into(device, tensor.rowwise().scale_inv.row_range(0, blocks).columns(0, others).transposed(),
            half.scale_inv.row_range(0, others).columns(0, blocks));
  return half;
}

}  // namespace fp8lab

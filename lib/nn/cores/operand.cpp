#include "nn/cores/operand.h"

#include <fmt/core.h>

#include "core/check.h"

namespace fp8lab {

OperandView columnwise_of(const Tensor& tensor) {
  OperandView operand = tensor.operand();
  operand.values = operand.values.transposed();
  return operand;
}

OperandView columnwise_of(const QuantizedTensor& tensor, const ArchProfile& arch) {
  return tensor.columnwise_operand(reads_rowwise_transposed(arch, tensor.format()));
}

OperandView columnwise_of(Restored& saved, std::size_t entry, const ArchProfile& arch) {
  if (saved.tensor(entry)) return columnwise_of(saved.tensor(entry));
  return columnwise_of(saved.quantized(entry), arch);
}

OperandView Operand::columnwise(const ArchProfile& arch) const {
  return is_quantized() ? columnwise_of(quantized, arch) : columnwise_of(plain);
}

void need_columnwise(Device& device, Parameter& weight, const std::string& reader) {
  const QuantFormat& format = weight.quantized.format();
  if (weight.quantized.columnwise() || reads_rowwise_transposed(device.arch(), format)) return;
  if (!format.columnwise_is_transpose())
    fail(fmt::format("{}: the column-wise orientation of its weight is needed and was not gathered in this pass",
                     reader));
  weight.make_columnwise(device);
}

void keep_for_backward(QuantizedTensor& tensor) {
  if (tensor.columnwise()) tensor.drop_rowwise();
}

}  // namespace fp8lab

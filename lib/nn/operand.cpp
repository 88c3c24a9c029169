#include "nn/operand.h"

namespace fp8lab {
namespace {

OperandView transposed(const Tensor& tensor) {
  OperandView operand = tensor.operand();
  operand.values = operand.values.transposed();
  return operand;
}

OperandView columnwise(const QuantizedTensor& tensor, const ArchProfile& arch) {
  return tensor.columnwise_operand(reads_rowwise_transposed(arch, tensor.format()));
}

}  // namespace

OperandView Operand::columnwise(const ArchProfile& arch) const {
  return is_quantized() ? fp8lab::columnwise(quantized, arch) : transposed(plain);
}

OperandView columnwise_of(Restored& saved, std::size_t entry, const ArchProfile& arch) {
  if (saved.tensor(entry)) return transposed(saved.tensor(entry));
  return columnwise(saved.quantized(entry), arch);
}

void keep_for_backward(QuantizedTensor& tensor) {
  if (tensor.columnwise()) tensor.drop_rowwise();
}

}  // namespace fp8lab

#pragma once

#include <optional>

#include "autograd/node.h"
#include "nn/cores/role_scales.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {

/// A matrix on its way into a product: quantized under the recipe, or as it is where the recipe does not quantize.
struct Operand {
  Tensor plain{};
  QuantizedTensor quantized{};
  Tensor amax{};  ///< of `plain`, where whoever made it measured it, as quantize() takes it

  bool is_quantized() const { return !plain; }
  OperandView rowwise() const { return is_quantized() ? quantized.rowwise_operand() : plain.operand(); }
  OperandView columnwise(const ArchProfile& arch) const;
};

/// What whoever makes a product's operand does for its cast as it makes it: nothing, unless one of these is asked for.
struct OperandRequest {
  std::optional<Quantizer> cast{};  ///< casts it, and does not store it
  bool measure = false;             ///< stores it, and leaves its amax with it
};

/// True where products in backward can read a row-wise matrix of this format the other way round, so that no
/// column-wise orientation is made.
inline bool reads_rowwise_transposed(const ArchProfile& arch, const QuantFormat& format) {
  return arch.fp8_gemm_any_orientation && format.per_tensor();
}

/// The transposed matrix as the operand of a product in backward: a tensor's, a quantized one's, or what saved entry
/// `entry` holds.
OperandView columnwise_of(const Tensor& tensor);
OperandView columnwise_of(const QuantizedTensor& tensor, const ArchProfile& arch);
OperandView columnwise_of(Restored& saved, std::size_t entry, const ArchProfile& arch);

/// Frees the orientation that backward will not read.
void keep_for_backward(QuantizedTensor& tensor);

}  // namespace fp8lab

#pragma once

#include <optional>
#include <string>
#include <utility>

#include "autograd/node.h"
#include "nn/cores/role_scales.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {

/// A matrix on its way into a matrix product: quantized under the recipe, or plain if the recipe does not quantize.
struct Operand {
  Tensor plain{};
  QuantizedTensor quantized{};
  Tensor amax{};  ///< amax of `plain`, if the operation that made it measured it; an argument of quantize()

  bool is_quantized() const { return !plain; }
  std::int64_t rows() const { return is_quantized() ? quantized.rows() : plain.rows(); }
  OperandView rowwise() const { return is_quantized() ? quantized.rowwise_operand() : plain.operand(); }
  OperandView columnwise(const ArchProfile& arch) const;
};

/// A gradient as the operand of a product.
inline Operand operand_of(Gradient gradient) {
  return {.plain = std::move(gradient.plain), .quantized = std::move(gradient.quantized)};
}

/// What a matrix product needs from the operation that makes its operand, to save work in the operand's cast. Nothing
/// by default.
struct OperandRequest {
  std::optional<Quantizer> cast{};  ///< cast the result and do not store it in high precision
  bool measure = false;             ///< store the result and return its amax too
};

/// What a module saves of a weight for backward, in addition to the parameter. Nothing if backward reads the
/// parameter.
struct SavedWeight {
  std::optional<QuantizedTensor> copy{};  ///< the weight as forward quantized it
  Tensor scale{};  ///< f32 [1]: forward's scale, if backward quantizes the weight again and the scale has a history
};

/// True if products in backward can read a row-wise matrix of this format transposed, so that no column-wise
/// orientation is made.
inline bool reads_rowwise_transposed(const ArchProfile& arch, const QuantFormat& format) {
  return arch.fp8_gemm_any_orientation && format.per_tensor();
}

/// The transposed matrix as an operand of a product in backward: of a plain tensor, of a quantized one, or of saved
/// entry `entry`.
OperandView columnwise_of(const Tensor& tensor);
OperandView columnwise_of(const QuantizedTensor& tensor, const ArchProfile& arch);
OperandView columnwise_of(Restored& saved, std::size_t entry, const ArchProfile& arch);

/// Makes the column-wise orientation of an eight-bit weight that products read, if a gather for another pass provided
/// only rows. Throws Error that names `reader` if the orientation is not the transpose of the rows.
void need_columnwise(Device& device, Parameter& weight, const std::string& reader);

/// Frees the row-wise orientation if backward can read the column-wise one.
void keep_for_backward(QuantizedTensor& tensor);

}  // namespace fp8lab

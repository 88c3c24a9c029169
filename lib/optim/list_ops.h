#pragma once

#include <span>
#include <vector>

#include "autograd/runtime.h"

namespace fp8lab {

/// An element of a list operation: a tensor, or a matrix in eight bits with its quantizer.
struct ListMember {
  Tensor value;
  QuantizedTensor* quantized = nullptr;
  const Quantizer* quantizer = nullptr;
  DType nominal = DType::kF32;  ///< for a quantized member: the type it is dequantized to

  static ListMember of(const Tensor& tensor) { return {.value = tensor, .nominal = tensor.dtype()}; }
  static ListMember of(Parameter& parameter);
};
using TensorList = std::vector<ListMember>;

/// The element-wise list operations of frameworks (torch._foreach_*): one launch each, whatever the number of tensors,
/// in f32 and rounded to each tensor's type. They change their first list in place; the other lists have the same
/// length and shapes. A quantized member is dequantized to its nominal type, and the result is cast back into it, both
/// orientations and scales. Temporaries of all such members live for the call. Members that are measured over ranks
/// share a reduction, so lists must be alike on all ranks.
void foreach_scale(Runtime& runtime, TensorList& list, double factor);                       ///< x *= factor
void foreach_add(Runtime& runtime, TensorList& list, double term);                           ///< x += term
void foreach_add(Runtime& runtime, TensorList& list, const TensorList& a, double factor);    ///< x += factor a
void foreach_sqrt(Runtime& runtime, TensorList& list);                                       ///< x = sqrt(x)
void foreach_lerp(Runtime& runtime, TensorList& list, const TensorList& to, double weight);  ///< x += weight (to - x)
/// x += weight (a b - x)
void foreach_lerp_product(Runtime& runtime, TensorList& list, const TensorList& a, const TensorList& b, double weight);
/// x += factor a / b
void foreach_addcdiv(Runtime& runtime, TensorList& list, const TensorList& a, const TensorList& b, double factor);
/// Copies in f32, also of members in eight bits.
TensorList foreach_copy(Runtime& runtime, const TensorList& list, HolderId holder);

}  // namespace fp8lab

#include "recipe/rows.h"

namespace fp8lab {
namespace {

QuantFormat per_tensor(DType dtype, AmaxSource source) {
  QuantFormat format;
  format.dtype = dtype;
  format.amax_source = source;
  return format;
}

// FP8 matrix products need the reduction axis divisible by 16 and the other axis by 8 (cuBLASLt's alignment rule, which
// Transformer Engine checks for every FP8 operand).
void set_shape_rule(Recipe& recipe) {
  recipe.rows_multiple = 8;
  recipe.cols_multiple = 16;
  recipe.shape_rule = "FP8 matrix products need rows divisible by 8 and columns by 16 (cuBLASLt)";
}

// The formats of both per-tensor recipes: E4M3 in forward, E5M2 for gradients.
Recipe hybrid(AmaxSource source) {
  Recipe recipe;
  recipe.activation = per_tensor(DType::kE4M3, source);
  recipe.weight = per_tensor(DType::kE4M3, source);
  recipe.gradient = per_tensor(DType::kE5M2, source);
  set_shape_rule(recipe);
  return recipe;
}

}  // namespace

// The scale comes from the maximum over the amaxes of earlier steps, so the cast reads its input only once.
Recipe make_delayed() {
  Recipe recipe = hybrid(AmaxSource::kHistory);
  AttentionFormats attention;
  attention.qkv = recipe.activation;
  attention.s = recipe.activation;
  attention.o = recipe.activation;
  attention.grad_o = recipe.gradient;
  attention.grad_p = recipe.gradient;
  attention.grad_qkv = recipe.gradient;
  attention.in_kernel = recipe.delayed;
  recipe.attention = attention;
  return recipe;
}

// The scale comes from the tensor itself. S and dP exist only inside the attention kernel, so they cannot be measured
// before their cast and keep a history of one step. Outputs stay in 16 bits.
Recipe make_current() {
  Recipe recipe = hybrid(AmaxSource::kTensor);
  AttentionFormats attention;
  attention.qkv = recipe.activation;
  attention.s = per_tensor(DType::kE4M3, AmaxSource::kHistory);
  attention.grad_o = recipe.gradient;
  attention.grad_p = per_tensor(DType::kE5M2, AmaxSource::kHistory);
  attention.in_kernel = {.history_length = 1, .algorithm = AmaxAlgorithm::kMostRecent, .margin = 0};
  recipe.attention = attention;
  return recipe;
}

}  // namespace fp8lab

#include "ops/attention.h"

#include <fmt/core.h>

#include <cmath>

#include "core/check.h"
#include "core/float8_format.h"
#include "ops/validate.h"

namespace fp8lab {
namespace {

std::string describe_matrix(std::string_view name_of_it, const MatrixView& view) {
  return fmt::format("{} is {} [{}, {}]", name_of_it, name(view.dtype), view.rows, view.cols);
}

void check_shape(std::string_view op, const AttentionShape& shape) {
  if (shape.seq < 0 || shape.batch < 0 || shape.heads < 1 || shape.kv_heads < 1 || shape.head_dim < 1 ||
      shape.value_dim < 0)
    fail(fmt::format(
        "{}: seq {}, batch {}, heads {}, kv_heads {}, head_dim {}; the last three must be at least 1, none negative",
        op, shape.seq, shape.batch, shape.heads, shape.kv_heads, shape.head_dim));
  if (shape.heads % shape.kv_heads != 0)
    fail(fmt::format(
        "{}: heads is {} and kv_heads {}; heads must be a multiple of kv_heads, so that each key/value head serves "
        "equally many query heads",
        op, shape.heads, shape.kv_heads));
  if (shape.window < 0 || (shape.window > 0 && !shape.causal))
    fail(fmt::format("{}: window is {}; it must be 0, or positive under a causal mask", op, shape.window));
  if (!(shape.dropout >= 0.0f && shape.dropout < 1.0f))
    fail(fmt::format("{}: dropout is {}; it must lie in [0, 1)", op, shape.dropout));
  if (!std::isfinite(shape.softmax_scale))
    fail(fmt::format("{}: softmax_scale is {}; it must be finite", op, shape.softmax_scale));
}

/// Heads, and the columns of each.
struct Columns {
  std::int64_t heads, dim;
};

/// The matrix must be [seq * batch, heads * head_dim] with contiguous columns.
void check_extent(std::string_view op, std::string_view name_of_it, const MatrixView& view, const AttentionShape& shape,
                  Columns columns) {
  if (view.rows != shape.seq * shape.batch || view.cols != columns.heads * columns.dim)
    fail(fmt::format("{}: {}; it must be [seq * batch, heads * head_dim] = [{} * {}, {} * {}]", op,
                     describe_matrix(name_of_it, view), shape.seq, shape.batch, columns.heads, columns.dim));
  if (view.col_stride != 1 && view.cols > 1)
    fail(fmt::format("{}: {} with columns {} elements apart; a row's columns must be contiguous", op,
                     describe_matrix(name_of_it, view), view.col_stride));
}

void check_operand(std::string_view op, std::string_view name_of_it, const OperandView& operand,
                   const AttentionShape& shape, Columns columns) {
  check_extent(op, name_of_it, operand.values, shape, columns);
  if (is_float8(operand.values.dtype)) {
    if (!operand.quantized() || !operand.scales.per_tensor() || operand.scales.dtype != DType::kF32)
      fail(fmt::format("{}: {} without one f32 scale; FP8 operands of attention are quantized per tensor", op,
                       describe_matrix(name_of_it, operand.values)));
  } else if (!is_real(operand.values.dtype) || operand.quantized()) {
    fail(fmt::format("{}: {}{}; it must be f32, f16, bf16, or FP8 with a scale", op,
                     describe_matrix(name_of_it, operand.values), operand.quantized() ? " with a scale" : ""));
  }
}

void check_one_type(std::string_view op, const MatrixView& q, const MatrixView& k, const MatrixView& v) {
  if (q.dtype != k.dtype || q.dtype != v.dtype)
    fail(fmt::format("{}: q, k and v are {}, {} and {}; all three must have one type", op, name(q.dtype), name(k.dtype),
                     name(v.dtype)));
}

/// A kernel casts P or dS only to multiply it by another FP8 operand.
void check_role(std::string_view op, std::string_view name_of_it, const AttentionRole& role,
                std::string_view partner_name, const MatrixView& partner) {
  if (role.scale == nullptr) return;
  if (!is_float8(role.dtype))
    fail(fmt::format("{}: role {} is cast to {}; it must be an FP8 type (e4m3, e5m2)", op, name_of_it,
                     name(role.dtype)));
  if (!is_float8(partner.dtype))
    fail(fmt::format("{}: role {} is cast to {} while {} is {}; a cast role needs FP8 operands", op, name_of_it,
                     name(role.dtype), partner_name, name(partner.dtype)));
}

void check_coming_cast(std::string_view op, std::string_view what, const AttentionRole& role) {
  if (role.scale != nullptr && !is_float8(role.dtype))
    fail(fmt::format("{}: {} will be cast to {}; it must be an FP8 type (e4m3, e5m2)", op, what, name(role.dtype)));
}

void check_qkv(std::string_view op, const AttentionShape& shape, const OperandView& q, const OperandView& k,
               const OperandView& v) {
  check_shape(op, shape);
  check_operand(op, "q", q, shape, {shape.heads, shape.head_dim});
  check_operand(op, "k", k, shape, {shape.kv_heads, shape.head_dim});
  check_operand(op, "v", v, shape, {shape.kv_heads, shape.columns_of_value()});
  check_one_type(op, q.values, k.values, v.values);
}

void check_gradient(std::string_view op, const NamedTensor& gradient, const AttentionShape& shape, Columns columns) {
  check_real(op, gradient);
  check_extent(op, gradient.name, gradient.tensor.view(), shape, columns);
}

void check_sinks(std::string_view op, const NamedTensor& sinks, const AttentionShape& shape) {
  if (!sinks.tensor) return;
  check_real(op, sinks);
  check_numel(op, sinks, shape.heads, "one for each head");
}

std::int64_t query_columns(const LatentHeads& of) { return of.heads * (of.head_dim + of.rope_dim); }
std::int64_t key_value_columns(const LatentHeads& of) { return of.heads * (of.head_dim + of.value_dim); }
std::int64_t packed_columns(const LatentHeads& of) { return 2 * query_columns(of) + of.heads * of.value_dim; }

void check_columns(std::string_view op, const NamedTensor& named, std::int64_t rows, std::int64_t columns) {
  check_real(op, named);
  if (named.tensor.rows() != rows || named.tensor.cols() != columns || !named.tensor.contiguous())
    fail(fmt::format("{}: {}; it must be a contiguous [{}, {}]", op, describe(named), rows, columns));
}

void check_sizes(std::string_view op, const LatentHeads& of, std::int64_t rows) {
  if (of.batch < 1 || of.heads < 1 || of.head_dim < 1 || of.rope_dim < 2 || of.rope_dim % 2 != 0 || of.value_dim < 1)
    fail(fmt::format(
        "{}: batch {}, heads {}, head_dim {}, rope_dim {}, value_dim {}; all must be positive, and rope_dim "
        "even",
        op, of.batch, of.heads, of.head_dim, of.rope_dim, of.value_dim));
  if (rows % of.batch != 0) fail(fmt::format("{}: {} tokens are no multiple of {} sequences", op, rows, of.batch));
}

LatentHeadsArgs args_of(const LatentHeads& of, const LatentHeadParts& parts, const Tensor& packed) {
  return {.q = parts.q.view(),
          .kv = parts.kv.view(),
          .k_rope = parts.k_rope.view(),
          .packed = packed.view(),
          .batch = of.batch,
          .heads = of.heads};
}

}  // namespace

AttentionOutputs attention_forward(Device& device, const AttentionInputs& inputs) {
  constexpr std::string_view kOp = "attention_forward";
  const AttentionShape& shape = inputs.shape;
  check_qkv(kOp, shape, inputs.q, inputs.k, inputs.v);
  check_role(kOp, "s", inputs.s, "v", inputs.v.values);
  check_coming_cast(kOp, "O", inputs.o_cast);
  check_sinks(kOp, {"sinks", inputs.sinks}, shape);
  if (!is_real(inputs.out_dtype))
    fail(fmt::format("{}: out_dtype is {}; it must be f32, f16 or bf16", kOp, name(inputs.out_dtype)));

  const TensorSpec o{Shape{shape.seq * shape.batch, shape.heads * shape.columns_of_value()}, inputs.out_dtype};
  const TensorSpec lse{Shape{shape.batch * shape.heads, shape.seq}, DType::kF32};
  AttentionOutputs outputs;
  outputs.o = device.allocate(o, inputs.o_holder);
  outputs.lse = device.allocate(lse, inputs.lse_holder);
  device.launch(&KernelTable::attention_forward, {.shape = shape,
                                                  .q = inputs.q,
                                                  .k = inputs.k,
                                                  .v = inputs.v,
                                                  .o = outputs.o.view(),
                                                  .lse = outputs.lse.view(),
                                                  .s = inputs.s,
                                                  .sinks = view_or_none(inputs.sinks),
                                                  .o_cast = inputs.o_cast,
                                                  .o_measured = &outputs.o_measured});
  return outputs;
}

bool attention_backward(Device& device, const AttentionBackwardInputs& inputs) {
  constexpr std::string_view kOp = "attention_backward";
  const AttentionShape& shape = inputs.shape;
  check_qkv(kOp, shape, inputs.q, inputs.k, inputs.v);
  check_operand(kOp, "o", inputs.o, shape, {shape.heads, shape.columns_of_value()});
  check_operand(kOp, "grad_o", inputs.grad_o, shape, {shape.heads, shape.columns_of_value()});
  check_role(kOp, "s", inputs.s, "grad_o", inputs.grad_o.values);
  check_role(kOp, "grad_p", inputs.grad_p, "k", inputs.k.values);
  check_coming_cast(kOp, "the gradient", inputs.grad_cast);
  check_dtype(kOp, {"lse", inputs.lse}, DType::kF32);
  if (!(inputs.lse.shape() == Shape{shape.batch * shape.heads, shape.seq}) || !inputs.lse.contiguous())
    fail(fmt::format("{}: lse is {}; it must be a contiguous [batch * heads, seq] = [{} * {}, {}]", kOp,
                     to_string(inputs.lse.shape()), shape.batch, shape.heads, shape.seq));
  check_gradient(kOp, {"grad_q", inputs.out.q}, shape, {shape.heads, shape.head_dim});
  check_gradient(kOp, {"grad_k", inputs.out.k}, shape, {shape.kv_heads, shape.head_dim});
  check_gradient(kOp, {"grad_v", inputs.out.v}, shape, {shape.kv_heads, shape.columns_of_value()});

  check_sinks(kOp, {"sinks", inputs.sinks}, shape);
  check_sinks(kOp, {"grad_sinks", inputs.out.sinks}, shape);
  if (static_cast<bool>(inputs.sinks) != static_cast<bool>(inputs.out.sinks))
    fail(fmt::format("{}: sinks and their gradient come together", kOp));

  bool measured = false;
  device.launch(&KernelTable::attention_backward, {.shape = shape,
                                                   .q = inputs.q,
                                                   .k = inputs.k,
                                                   .v = inputs.v,
                                                   .o = inputs.o,
                                                   .grad_o = inputs.grad_o,
                                                   .lse = inputs.lse.view(),
                                                   .grad_q = inputs.out.q.view(),
                                                   .grad_k = inputs.out.k.view(),
                                                   .grad_v = inputs.out.v.view(),
                                                   .s = inputs.s,
                                                   .grad_p = inputs.grad_p,
                                                   .sinks = view_or_none(inputs.sinks),
                                                   .grad_sinks = view_or_none(inputs.out.sinks),
                                                   .grad_cast = inputs.grad_cast,
                                                   .grad_measured = &measured});
  return measured;
}

Tensor latent_heads(Device& device, const LatentHeads& heads, const LatentHeadParts& parts, HolderId holder) {
  constexpr std::string_view kOp = "latent_heads";
  const std::int64_t tokens = parts.k_rope.rows();
  check_sizes(kOp, heads, tokens);
  check_columns(kOp, {"q", parts.q}, tokens, query_columns(heads));
  check_columns(kOp, {"kv", parts.kv}, tokens, key_value_columns(heads));
  check_columns(kOp, {"k_rope", parts.k_rope}, tokens, heads.rope_dim);
  Tensor packed = device.allocate({Shape{tokens, packed_columns(heads)}, parts.q.dtype()}, holder);
  device.launch(&KernelTable::latent_heads, args_of(heads, parts, packed));
  return packed;
}

LatentHeadParts latent_heads_backward(Device& device, const LatentHeads& heads, const Tensor& grad, HolderId holder) {
  constexpr std::string_view kOp = "latent_heads_backward";
  const std::int64_t tokens = grad.rows();
  check_sizes(kOp, heads, tokens);
  check_columns(kOp, {"grad", grad}, tokens, packed_columns(heads));
  const auto made = [&](std::int64_t columns) {
    return device.allocate({Shape{tokens, columns}, grad.dtype()}, holder);
  };
  LatentHeadParts parts{
      .q = made(query_columns(heads)), .kv = made(key_value_columns(heads)), .k_rope = made(heads.rope_dim)};
  device.launch(&KernelTable::latent_heads_backward, {args_of(heads, parts, grad)});
  return parts;
}

}  // namespace fp8lab

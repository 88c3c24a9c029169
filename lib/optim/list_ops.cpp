#include "optim/list_ops.h"

#include <fmt/core.h>

#include "core/check.h"
#include "ops/elementwise.h"
#include "ops/rewrite.h"
#include "optim/optim_hooks.h"

namespace fp8lab {
namespace {

struct ListCall {
  ListOp op;
  const TensorList* a = nullptr;
  const TensorList* b = nullptr;
  double scalar = 0.0;
};

/// The tensor that the kernel reads or writes: the member itself, or a dequantized temporary.
Tensor in_high_precision(Runtime& runtime, const ListMember& member) {
  if (member.quantized == nullptr) return member.value;
  Device& device = runtime.device;
  return dequantize(device, member.quantized->rowwise_operand(), member.nominal, runtime.workspace("list operation"));
}

/// The end of every in-place operation. `computed` has the results, in temporaries for quantized members.
void write_back(Runtime& runtime, TensorList& list, const std::vector<Tensor>& computed) {
  std::vector<Rewrite> rewrites;
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].quantized != nullptr)
      rewrites.push_back({.value = computed[i], .to = list[i].quantized, .quantizer = list[i].quantizer});
  make_optim_hooks(runtime.behaviors)->before_write_back(rewrites);
  quantize_in_place(runtime.device, rewrites);
}

std::vector<Tensor> operands(Runtime& runtime, const TensorList& of, const TensorList* list) {
  std::vector<Tensor> tensors;
  if (list == nullptr) return tensors;
  if (list->size() != of.size())
    fail(fmt::format("list operation: {} tensors with {}; each tensor needs one of its own shape", of.size(),
                     list->size()));
  for (const ListMember& member : *list) tensors.push_back(in_high_precision(runtime, member));
  return tensors;
}

void run(Runtime& runtime, TensorList& list, const ListCall& call) {
  const std::vector<Tensor> out = operands(runtime, list, &list);
  const std::vector<Tensor> a = operands(runtime, list, call.a);
  const std::vector<Tensor> b = operands(runtime, list, call.b);
  std::vector<ListOpTensor> tensors;
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (const std::vector<Tensor>* other : {&a, &b})
      if (!other->empty() && ((*other)[i].rows() != out[i].rows() || (*other)[i].cols() != out[i].cols()))
        fail(fmt::format("list operation: tensor {} is {}, its operand {}; shapes must be equal", i,
                         to_string(out[i].shape()), to_string((*other)[i].shape())));
    tensors.push_back({.out = out[i].view(),
                       .a = a.empty() ? MatrixView{} : a[i].view(),
                       .b = b.empty() ? MatrixView{} : b[i].view()});
  }
  runtime.device.launch(&KernelTable::list_op,
                        ListOpArgs{.op = call.op, .tensors = tensors, .scalar = static_cast<float>(call.scalar)});
  write_back(runtime, list, out);
}

}  // namespace

ListMember ListMember::of(Parameter& parameter) {
  if (!parameter.in_eight_bits()) return of(parameter.value);
  return {.value = {},
          .quantized = &parameter.quantized,
          .quantizer = parameter.quantizer.get(),
          .nominal = parameter.spec.dtype};
}

void foreach_scale(Runtime& runtime, TensorList& list, double factor) {
  run(runtime, list, {.op = ListOp::kScale, .scalar = factor});
}
void foreach_add(Runtime& runtime, TensorList& list, double term) {
  run(runtime, list, {.op = ListOp::kAdd, .scalar = term});
}
void foreach_add(Runtime& runtime, TensorList& list, const TensorList& a, double factor) {
  run(runtime, list, {.op = ListOp::kAddList, .a = &a, .scalar = factor});
}
void foreach_sqrt(Runtime& runtime, TensorList& list) { run(runtime, list, {.op = ListOp::kSqrt}); }
void foreach_lerp(Runtime& runtime, TensorList& list, const TensorList& to, double weight) {
  run(runtime, list, {.op = ListOp::kLerp, .a = &to, .scalar = weight});
}
void foreach_lerp_product(Runtime& runtime, TensorList& list, const TensorList& a, const TensorList& b, double weight) {
  run(runtime, list, {.op = ListOp::kLerpProduct, .a = &a, .b = &b, .scalar = weight});
}
void foreach_addcdiv(Runtime& runtime, TensorList& list, const TensorList& a, const TensorList& b, double factor) {
  run(runtime, list, {.op = ListOp::kAddcdiv, .a = &a, .b = &b, .scalar = factor});
}

TensorList foreach_copy(Runtime& runtime, const TensorList& list, HolderId holder) {
  TensorList copies;
  for (const ListMember& member : list)
    copies.push_back(ListMember::of(cast(runtime.device, in_high_precision(runtime, member), DType::kF32, holder)));
  return copies;
}

}  // namespace fp8lab

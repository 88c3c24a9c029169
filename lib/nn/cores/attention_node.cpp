#include "nn/cores/attention_node.h"

#include <optional>
#include <utility>

#include "ops/attention.h"

namespace fp8lab {
AttentionNode::AttentionNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input, AttentionCore& core,
                             const AttentionShape& shape)
    : Node(runtime, std::move(name), {std::move(input)}), core_(core), shape_(shape) {}

std::vector<Tensor> AttentionNode::backward(Tensor grad) {
  Restored saved = restore();
  const Tensor& qkv = saved.tensor(0);
  const AttentionCore::Split parts = core_.split(qkv);
  Tensor grad_qkv = device().allocate(qkv.spec(), runtime().in_flight(name()));
  const AttentionCore::Split grads = core_.split(grad_qkv);
  Tensor grad_sinks = core_.make_sink_gradient(device());
  attention_backward(device(), {.shape = shape_,
                                .q = parts.q.operand(),
                                .k = parts.k.operand(),
                                .v = parts.v.operand(),
                                .o = saved.tensor(1).operand(),
                                .grad_o = grad.operand(),
                                .lse = saved.tensor(2),
                                .s = {},
                                .grad_p = {},
                                .sinks = core_.sinks_ ? core_.sinks_->value : Tensor(),
                                .out = {grads.q, grads.k, grads.v, grad_sinks}});
  if (core_.sinks_) core_.sinks_->accumulate(device(), std::move(grad_sinks));
  return {std::move(grad_qkv)};
}

QuantizedAttentionNode::QuantizedAttentionNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input,
                                               AttentionCore& core, const AttentionShape& shape, bool returns_quantized)
    : Node(runtime, std::move(name), {std::move(input)}, core.shells_of(runtime.behaviors, !returns_quantized)),
      core_(core),
      shape_(shape),
      returns_quantized_(returns_quantized) {}

std::vector<Gradient> QuantizedAttentionNode::backward_of(Gradient grad) {
  Restored saved = restore();
  QuantizedTensor& q = saved.quantized(0);
  QuantizedTensor& k = saved.quantized(1);
  QuantizedTensor& v = saved.quantized(2);
  const Tensor& o = saved.tensor(5);
  std::vector<Gradient> gradients;
  const DType dtype = core_.dtype_;
  const HolderId local = runtime().workspace(name());
  RoleScales& scales = *core_.backward_scales_;

  const QuantizedTensor grad8 =
      grad.is_quantized() ? std::move(grad.quantized)
                          : quantize(device(), grad.plain, scales.quantizer(AttentionCore::kGradO, {}, local));
  grad = {};
  Tensor grad_qkv =
      device().allocate({Shape{q.rows(), q.cols() + k.cols() + v.cols()}, dtype}, runtime().in_flight(name()));
  AttentionRole s;
  s.dtype = core_.formats_->s.dtype;
  s.scale = saved.tensor(4).data<float>();
  const std::optional<QuantFormat>& cast = core_.formats_->grad_qkv;
  AttentionRole grad_cast;
  if (cast && cast->amax_source == AmaxSource::kHistory) grad_cast = scales.kernel_role(AttentionCore::kGradQkv);
  bool measured = false;
  {
    const AttentionCore::Split grads = core_.split(grad_qkv);  // claims, released before grad_qkv is freed below
    measured = attention_backward(device(), {.shape = shape_,
                                             .q = q.rowwise_operand(),
                                             .k = k.rowwise_operand(),
                                             .v = v.rowwise_operand(),
                                             .o = o ? o.operand() : saved.quantized(5).rowwise_operand(),
                                             .grad_o = grad8.rowwise_operand(),
                                             .lse = saved.tensor(3),
                                             .s = s,
                                             .grad_p = scales.kernel_role(AttentionCore::kGradP),
                                             .grad_cast = grad_cast,
                                             .out = {grads.q, grads.k, grads.v}});
  }
  if (cast) {
    Quantizer to_eight_bits = scales.quantizer(AttentionCore::kGradQkv, {}, local);
    if (measured) to_eight_bits.amax = {};  // the kernel has measured the gradients before their rounding
    QuantizedTensor eight_bits = quantize(device(), grad_qkv, to_eight_bits);
    grad_qkv = {};
    if (returns_quantized_) {
      gradients.push_back({.plain = {}, .quantized = std::move(eight_bits)});
      return gradients;
    }
    grad_qkv = dequantize(device(), eight_bits.rowwise_operand(), dtype, runtime().in_flight(name()));
  }
  gradients.push_back({.plain = std::move(grad_qkv)});
  return gradients;
}

}  // namespace fp8lab

#include "nn/cores/ring_attention_node.h"

#include <optional>
#include <utility>

#include "ops/elementwise.h"
#include "ops/ring_attention.h"

namespace fp8lab {
namespace {

AttentionMatrix matrix_of(const QuantizedTensor& tensor) { return {tensor.rowwise().data, tensor.rowwise().scale_inv}; }

/// The gradient of the packed projection, rounded once to `dtype`.
Tensor packed(Device& device, RingAttentionGradients gradients, DType dtype, HolderId holder) {
  const std::int64_t queries = gradients.q.cols(), keys = gradients.kv.cols();
  Tensor grad_qkv = device.allocate({Shape{gradients.q.rows(), queries + keys}, dtype}, holder);
  copy_into(device, gradients.q, grad_qkv.columns(0, queries));
  copy_into(device, gradients.kv, grad_qkv.columns(queries, keys));
  return grad_qkv;
}

}  // namespace

RingAttentionNode::RingAttentionNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input,
                                     AttentionCore& core, const AttentionShape& shape)
    : Node(runtime, std::move(name), {std::move(input)}), core_(core), shape_(shape) {}

std::vector<Tensor> RingAttentionNode::backward(Tensor grad) {
  Restored saved = restore();
  const Tensor& qkv = saved.tensor(0);
  RingAttentionGradients gradients = ring_attention_backward(device(), {.shape = shape_,
                                                                        .ranks = *runtime().context_group,
                                                                        .q = {core_.split(qkv).q},
                                                                        .kv = {saved.tensor(1)},
                                                                        .o = {saved.tensor(2)},
                                                                        .grad_o = {grad},
                                                                        .lse = {saved.tensor(3), saved.tensor(4)},
                                                                        .s = {},
                                                                        .grad_p = {},
                                                                        .holder = runtime().workspace(name()),
                                                                        .label = name()});
  return {packed(device(), std::move(gradients), qkv.dtype(), runtime().in_flight(name()))};
}

QuantizedRingAttentionNode::QuantizedRingAttentionNode(Runtime& runtime, std::string name, std::shared_ptr<Node> input,
                                                       AttentionCore& core, const AttentionShape& shape)
    : Node(runtime, std::move(name), {std::move(input)}, core.shells_of(runtime.behaviors, true)),
      core_(core),
      shape_(shape) {}

std::vector<Tensor> QuantizedRingAttentionNode::backward(Tensor grad) {
  Restored saved = restore();
  const HolderId local = runtime().workspace(name()), in_flight = runtime().in_flight(name());
  const DType dtype = core_.dtype_;
  RoleScales& scales = *core_.backward_scales_;
  const Tensor& o = saved.tensor(5);

  const QuantizedTensor grad8 = quantize(device(), grad, scales.quantizer(AttentionCore::kGradO, {}, local));
  grad = {};
  AttentionRole s;
  s.dtype = core_.formats_->s.dtype;
  s.scale = saved.tensor(4).data<float>();
  RingAttentionGradients gradients =
      ring_attention_backward(device(), {.shape = shape_,
                                         .ranks = *runtime().context_group,
                                         .q = matrix_of(saved.quantized(0)),
                                         .kv = matrix_of(saved.quantized(1)),
                                         .o = o ? AttentionMatrix{o} : matrix_of(saved.quantized(5)),
                                         .grad_o = matrix_of(grad8),
                                         .lse = {saved.tensor(2), saved.tensor(3)},
                                         .s = s,
                                         .grad_p = scales.kernel_role(AttentionCore::kGradP),
                                         .holder = local,
                                         .label = name()});
  Tensor grad_qkv = packed(device(), std::move(gradients), dtype, in_flight);
  if (!core_.formats_->grad_qkv) return {std::move(grad_qkv)};
  const QuantizedTensor eight_bits = quantize(device(), grad_qkv, scales.quantizer(AttentionCore::kGradQkv, {}, local));
  grad_qkv = {};
  return {dequantize(device(), eight_bits.rowwise_operand(), dtype, in_flight)};
}

}  // namespace fp8lab

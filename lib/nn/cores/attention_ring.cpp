#include <array>
#include <utility>

#include "nn/cores/attention_core.h"
#include "nn/cores/ring_attention_node.h"
#include "ops/elementwise.h"
#include "ops/ring_attention.h"

// Attention when ranks split sequences between them.
namespace fp8lab {
namespace {

/// Both chunks of O in one matrix, rounded once to `dtype`.
Tensor joined(Device& device, ByChunk chunks, DType dtype, HolderId holder) {
  const std::int64_t rows = chunks[0].rows();
  Tensor o = device.allocate({Shape{2 * rows, chunks[0].cols()}, dtype}, holder);
  for (std::size_t i = 0; i < chunks.size(); ++i)
    copy_into(device, chunks[i], o.row_range(static_cast<std::int64_t>(i) * rows, rows));
  return o;
}

/// O with a node whose backward computes in 16 bits.
Variable in_sixteen_bits(Runtime& runtime, const std::string& name, AttentionCore& core, const Variable& qkv,
                         const AttentionShape& shape, const Tensor& kv, Tensor o, const ByChunk& lse) {
  const auto node = std::make_shared<RingAttentionNode>(runtime, name, qkv.producer, core, shape);
  node->save("qkv", qkv.value);
  node->save("kv", kv);
  node->save("o", o);
  node->save("lse of first chunk", lse[0]);
  node->save("lse of second chunk", lse[1]);
  return {std::move(o), node};
}

}  // namespace

Variable AttentionCore::forward_ring(Runtime& runtime, const Variable& qkv) {
  Device& device = runtime.device;
  const HolderId local = runtime.workspace(name_);
  const AttentionShape shape = shape_at(runtime);
  // The ring sends what lies in one piece, which K and V among the columns of the projection do not.
  RingAttentionOutputs result = ring_attention_forward(
      device, {.shape = shape,
               .ranks = *runtime.context_group,
               .q = {qkv.value.columns(0, query_columns())},
               .kv = {cast(device, qkv.value.columns(query_columns(), 2 * key_columns()), qkv.value.dtype(), local)},
               .s = {},
               .holder = local,
               .label = name_});
  Tensor o = joined(device, std::exchange(result.o, {}), dtype_, runtime.in_flight(name_));
  return in_sixteen_bits(runtime, name_, *this, qkv, shape, result.kv.values, std::move(o), result.lse);
}

Variable AttentionCore::forward_quantized_ring(Runtime& runtime, const Variable& qkv) {
  Device& device = runtime.device;
  const HolderId local = runtime.workspace(name_);
  const AttentionShape shape = shape_at(runtime);
  RoleScales& scales = *forward_scales_;
  begin_quantized(runtime);

  const std::array<Tensor, 2> inputs{qkv.value.columns(0, query_columns()),
                                     qkv.value.columns(query_columns(), 2 * key_columns())};
  std::vector<QuantizedTensor> cast8 = quantize_together(device, inputs, scales.quantizer(kQkv, {}, local));
  QuantizedTensor q8 = std::move(cast8[0]), kv8 = std::move(cast8[1]);
  // Amaxes, and with them scales, may differ between ranks: each rank's keys travel with their own scale.
  RingAttentionOutputs result = ring_attention_forward(
      device, {.shape = shape,
               .ranks = *runtime.context_group,
               .q = {q8.rowwise().data, q8.rowwise().scale_inv},
               .kv = {std::exchange(kv8.rowwise().data, {}), std::exchange(kv8.rowwise().scale_inv, {})},
               .s = scales.kernel_role(kS),
               .holder = local,
               .label = name_});
  Tensor before_cast = joined(device, std::exchange(result.o, {}), dtype_, local);
  auto [o, o8] = cast_output(runtime, std::move(before_cast), false);
  const Tensor s_scale = saved_scale_of_p(runtime);
  scales.end_forward();
  if (!config_.fp8_attention_backward) {
    const Tensor kv = dequantize(device, result.kv.operand(), dtype_, local);
    return in_sixteen_bits(runtime, name_, *this, qkv, shape, kv, std::move(o), result.lse);
  }

  const auto node = std::make_shared<QuantizedRingAttentionNode>(runtime, name_, qkv.producer, *this, shape);
  kv8.rowwise() = {result.kv.values, result.kv.scale_inv};
  node->save_split("q", std::move(q8));
  node->save_split("kv", std::move(kv8));
  node->save("lse of first chunk", result.lse[0]);
  node->save("lse of second chunk", result.lse[1]);
  node->save("s_scale", s_scale);
  if (formats_->o)
    node->save_quantized("o", o8);
  else
    node->save("o", o);
  return {std::move(o), node};
}

}  // namespace fp8lab

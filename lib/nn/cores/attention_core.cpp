#include "nn/cores/attention_core.h"

#include <array>
#include <cmath>
#include <utility>

#include "nn/cores/attention_node.h"
#include "ops/attention.h"
#include "ops/elementwise.h"

namespace fp8lab {
namespace {

enum ForwardRole { kQkv, kS, kO };

std::vector<QuantFormat> forward_roles(const AttentionFormats& formats) {
  return {formats.qkv, formats.s, formats.o.value_or(QuantFormat{})};
}

std::vector<QuantFormat> backward_roles(const AttentionFormats& formats) {
  return {formats.grad_o, formats.grad_p, formats.grad_qkv.value_or(QuantFormat{})};
}

}  // namespace

AttentionCore::AttentionCore(Build& build, const std::string& name, const LayerConfig& config)
    : name_(name), config_(config) {
  if (!config.fp8_attention || !build.recipe.attention) return;
  formats_ = build.recipe.attention;
  forward_scales_.emplace(build, name + " forward", forward_roles(*formats_), formats_->in_kernel, true);
  backward_scales_.emplace(build, name + " backward", backward_roles(*formats_), formats_->in_kernel, false);
}

AttentionCore::Split AttentionCore::split(const Tensor& packed) const {
  const std::int64_t dim = config_.head_dim();
  const std::int64_t queries = config_.heads * dim, keys = config_.kv_heads * dim;
  return {packed.columns(0, queries), packed.columns(queries, keys), packed.columns(queries + keys, keys)};
}

AttentionShape AttentionCore::shape_at(const Runtime& runtime) const {
  return {.seq = config_.seq,
          .batch = config_.batch,
          .heads = config_.heads,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim(),
          .causal = true,
          .softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim()))),
          .dropout = config_.dropout,
          // The seed depends on the rank's rows, so sequences of other ranks draw from other streams.
          .seed = runtime.seed + static_cast<std::uint64_t>(runtime.row_offset),
          .stream = stream_of(name_) + static_cast<std::uint64_t>(runtime.step)};
}

Variable AttentionCore::forward(Runtime& runtime, const Variable& qkv) {
  if (formats_) return forward_quantized(runtime, qkv);
  const Split parts = split(qkv.value);
  const AttentionShape shape = shape_at(runtime);
  AttentionOutputs result = attention_forward(runtime.device, {.shape = shape,
                                                               .q = parts.q.operand(),
                                                               .k = parts.k.operand(),
                                                               .v = parts.v.operand(),
                                                               .s = {},
                                                               .out_dtype = qkv.value.dtype(),
                                                               .o_holder = runtime.in_flight(name_),
                                                               .lse_holder = runtime.workspace(name_)});
  const auto node = std::make_shared<AttentionNode>(runtime, name_, qkv.producer, *this, shape);
  node->save("qkv", qkv.value);
  node->save("o", result.o);
  node->save("lse", result.lse);
  return {std::move(result.o), node};
}

Variable AttentionCore::forward_quantized(Runtime& runtime, const Variable& qkv) {
  Device& device = runtime.device;
  const HolderId local = runtime.workspace(name_);
  const DType dtype = qkv.value.dtype();
  const AttentionShape shape = shape_at(runtime);
  RoleScales& scales = *forward_scales_;
  scales.begin_forward(runtime);

  const Split parts = split(qkv.value);
  const std::array<Tensor, 3> inputs{parts.q, parts.k, parts.v};
  std::vector<QuantizedTensor> qkv8 = quantize_together(device, inputs, scales.quantizer(kQkv, {}, local));
  AttentionRole o_cast;
  if (formats_->o && formats_->o->amax_source == AmaxSource::kHistory) o_cast = scales.kernel_role(kO);
  AttentionOutputs result = attention_forward(device, {.shape = shape,
                                                       .q = qkv8[0].rowwise_operand(),
                                                       .k = qkv8[1].rowwise_operand(),
                                                       .v = qkv8[2].rowwise_operand(),
                                                       .s = scales.kernel_role(kS),
                                                       .o_cast = o_cast,
                                                       .out_dtype = dtype,
                                                       .o_holder = local,
                                                       .lse_holder = local});

  const auto node = std::make_shared<QuantizedAttentionNode>(runtime, name_, qkv.producer, *this, shape);
  node->save_split("q", std::move(qkv8[0]));
  node->save_split("k", std::move(qkv8[1]));
  node->save_split("v", std::move(qkv8[2]));
  node->save("lse", result.lse);
  // Backward must cast P with the scale of forward, but the history changes in between, so the scale is saved.
  node->save("s_scale", cast(device, scales.scale(kS), DType::kF32, local));
  Tensor o = std::move(result.o);
  if (formats_->o) {
    // The output is dequantized from O's eight bits, which are also what backward reads.
    Quantizer to_eight_bits = scales.quantizer(kO, {}, local);
    if (result.o_measured) to_eight_bits.amax = {};  // the kernel has measured O before its rounding
    const QuantizedTensor o8 = quantize(device, o, to_eight_bits);
    o = {};
    o = dequantize(device, o8.rowwise_operand(), dtype, runtime.in_flight(name_));
    node->save_quantized("o", o8);
  } else {
    o.rename(runtime.in_flight(name_));
    node->save("o", o);
  }
  scales.end_forward();
  return {std::move(o), node};
}

}  // namespace fp8lab

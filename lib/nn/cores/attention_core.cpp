#include "nn/cores/attention_core.h"

#include <array>
#include <cmath>
#include <utility>

#include "autograd/activation_checkpoint.h"
#include "core/check.h"
#include "nn/cores/attention_node.h"
#include "ops/attention.h"
#include "ops/elementwise.h"

namespace fp8lab {
namespace {

std::vector<QuantFormat> forward_roles(const AttentionFormats& formats) {
  return {formats.qkv, formats.s, formats.o.value_or(QuantFormat{})};
}

std::vector<QuantFormat> backward_roles(const AttentionFormats& formats) {
  return {formats.grad_o, formats.grad_p, formats.grad_qkv.value_or(QuantFormat{})};
}

/// Columns of a matrix that is quantized row-wise, per tensor. Data and scale are shared.
QuantizedTensor columns_of(const QuantizedTensor& packed, std::int64_t begin, std::int64_t count) {
  QuantizedTensor out(Shape{packed.rows(), count}, packed.format());
  out.rowwise().data = packed.rowwise().data.columns(begin, count);
  out.rowwise().scale_inv = packed.rowwise().scale_inv;
  return out;
}

}  // namespace

bool exchanges_eight_bits(const Build& build, const LayerConfig& config) {
  const std::optional<AttentionFormats>& formats = build.recipe.attention;
  return config.fp8_attention && config.fp8_attention_backward && config.fp8_mha && formats && formats->o &&
         formats->o->amax_source == AmaxSource::kHistory;
}

AttentionCore::AttentionCore(Build& build, const std::string& name, const LayerConfig& config)
    : name_(name),
      config_(config),
      dtype_(build.dtype),
      exchanges_eight_bits_(fp8lab::exchanges_eight_bits(build, config)) {
  if (config.attention_sinks) sinks_ = make_parameter(build, name + ".sinks", {config.heads}, Init::kZeros);
  if (!config.fp8_attention || !build.recipe.attention) return;
  if (sinks_) fail(name + ": FP8 attention has no sinks");
  formats_ = build.recipe.attention;
  forward_scales_.emplace(build, name + " forward", forward_roles(*formats_), formats_->in_kernel, true);
  if (config.fp8_attention_backward)
    backward_scales_.emplace(build, name + " backward", backward_roles(*formats_), formats_->in_kernel, false);
}

Tensor AttentionCore::make_sink_gradient(Device& device) const {
  return sinks_ ? device.allocate(sinks_->spec, sinks_->grad_holder) : Tensor();
}

AttentionCore::Split AttentionCore::split(const Tensor& packed) const {
  const std::int64_t queries = query_columns(), keys = key_columns();
  return {packed.columns(0, queries), packed.columns(queries, keys), packed.columns(queries + keys, value_columns())};
}

AttentionShape AttentionCore::shape_at(const Runtime& runtime) const {
  return {.seq = config_.seq,
          .batch = config_.batch,
          .heads = config_.heads,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.key_dim(),
          .value_dim = config_.value_dim(),
          .causal = true,
          .window = config_.window,
          .softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.key_dim()))),
          .dropout = runtime.dropout(config_.dropout),
          // The seed depends on the rank's rows, so sequences of other ranks draw from other streams.
          .seed = runtime.seed + static_cast<std::uint64_t>(runtime.row_offset),
          .stream = stream_of(name_) + static_cast<std::uint64_t>(runtime.step)};
}

Variable AttentionCore::forward(Runtime& runtime, const Variable& qkv) {
  if (runtime.context_group != nullptr) {
    if (sinks_) fail(name_ + ": ranks that split sequences merge attention without sinks");
    if (formats_) return forward_quantized_ring(runtime, qkv);
    return forward_ring(runtime, qkv);
  }
  if (formats_) return forward_quantized(runtime, qkv);
  const Split parts = split(qkv.value);
  const AttentionShape shape = shape_at(runtime);
  KeptResult kept(runtime, KeptResult::Of::kAttention);
  if (kept.found()) {
    Tensor o = kept.take(runtime.in_flight(name_));
    return with_plain_backward(runtime, qkv, shape, std::move(o), kept.take(runtime.workspace(name_)));
  }
  AttentionOutputs result = attention_forward(runtime.device, {.shape = shape,
                                                               .q = parts.q.operand(),
                                                               .k = parts.k.operand(),
                                                               .v = parts.v.operand(),
                                                               .s = {},
                                                               .sinks = sinks_ ? sinks_->value : Tensor(),
                                                               .out_dtype = qkv.value.dtype(),
                                                               .o_holder = runtime.in_flight(name_),
                                                               .lse_holder = runtime.workspace(name_)});
  kept.keep(result.o);
  kept.keep(result.lse);
  return with_plain_backward(runtime, qkv, shape, std::move(result.o), result.lse);
}

Variable AttentionCore::with_plain_backward(Runtime& runtime, const Variable& qkv, const AttentionShape& shape,
                                            Tensor o, const Tensor& lse) {
  const auto node = std::make_shared<AttentionNode>(runtime, name_, qkv.producer, *this, shape);
  node->save("qkv", qkv.value);
  node->save("o", o);
  node->save("lse", lse);
  return {std::move(o), node};
}

void AttentionCore::begin_quantized(Runtime& runtime) {
  for (std::optional<RoleScales>* roles : {&forward_scales_, &backward_scales_})
    if (*roles) (*roles)->resize_histories(runtime.device);
  forward_scales_->begin_forward(runtime);
}

AttentionCore::Output AttentionCore::cast_output(Runtime& runtime, Tensor o, bool measured) {
  if (!formats_->o) {
    o.rename(runtime.in_flight(name_));
    return {.o = std::move(o), .o8 = {}};
  }
  // The output is dequantized from O's eight bits, which are also what backward reads.
  Device& device = runtime.device;
  Quantizer to_eight_bits = forward_scales_->quantizer(kO, {}, runtime.workspace(name_));
  if (measured) to_eight_bits.amax = {};  // the kernel has measured O before its rounding
  QuantizedTensor o8 = quantize(device, o, to_eight_bits);
  o = {};
  if (!exchanges_eight_bits_) o = dequantize(device, o8.rowwise_operand(), dtype_, runtime.in_flight(name_));
  return {.o = std::move(o), .o8 = std::move(o8)};
}

Tensor AttentionCore::saved_scale_of_p(Runtime& runtime) const {
  if (!config_.fp8_attention_backward) return {};
  return cast(runtime.device, forward_scales_->scale(kS), DType::kF32, runtime.workspace(name_));
}

Variable AttentionCore::forward_quantized(Runtime& runtime, const Variable& qkv) {
  Device& device = runtime.device;
  const HolderId local = runtime.workspace(name_);
  const AttentionShape shape = shape_at(runtime);
  RoleScales& scales = *forward_scales_;
  begin_quantized(runtime);

  std::vector<QuantizedTensor> qkv8;
  if (qkv.value) {
    const Split parts = split(qkv.value);
    const std::array<Tensor, 3> inputs{parts.q, parts.k, parts.v};
    qkv8 = quantize_together(device, inputs, scales.quantizer(kQkv, {}, local));
  } else {
    const std::int64_t queries = query_columns(), keys = key_columns();
    for (const auto& [begin, count] : {std::pair{std::int64_t{0}, queries}, {queries, keys}, {queries + keys, keys}})
      qkv8.push_back(columns_of(qkv.quantized, begin, count));
  }
  AttentionRole o_cast;
  if (formats_->o && formats_->o->amax_source == AmaxSource::kHistory) o_cast = scales.kernel_role(kO);
  AttentionOutputs result = attention_forward(device, {.shape = shape,
                                                       .q = qkv8[0].rowwise_operand(),
                                                       .k = qkv8[1].rowwise_operand(),
                                                       .v = qkv8[2].rowwise_operand(),
                                                       .s = scales.kernel_role(kS),
                                                       .o_cast = o_cast,
                                                       .out_dtype = dtype_,
                                                       .o_holder = local,
                                                       .lse_holder = local});

  auto [o, o8] = cast_output(runtime, std::move(result.o), result.o_measured);
  const Tensor s_scale = saved_scale_of_p(runtime);
  scales.end_forward();
  if (!config_.fp8_attention_backward) return with_plain_backward(runtime, qkv, shape, std::move(o), result.lse);

  const auto node = std::make_shared<QuantizedAttentionNode>(runtime, name_, qkv.producer, *this, shape, !qkv.value);
  node->save_split("q", std::move(qkv8[0]));
  node->save_split("k", std::move(qkv8[1]));
  node->save_split("v", std::move(qkv8[2]));
  node->save("lse", result.lse);
  node->save("s_scale", s_scale);
  if (formats_->o)
    node->save_quantized("o", o8);
  else
    node->save("o", o);
  if (exchanges_eight_bits_) return {{}, node, std::move(o8)};
  return {std::move(o), node};
}

}  // namespace fp8lab

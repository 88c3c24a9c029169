#include "nn/layers/multihead_attention.h"

namespace fp8lab {
namespace {

// A norm and a rotary embedding compute in high precision, so that Q, K and V are cast after them.
std::unique_ptr<Module> make_qkv(Build& build, const std::string& name, const LayerConfig& config) {
  if (config.has_latents()) return std::make_unique<LatentProjections>(build, name, config);
  return std::make_unique<LayerNormLinear>(
      build, name + ".qkv", config.form.norm,
      LinearShape{.in = config.hidden,
                  .out = config.qkv_columns(),
                  .bias = config.has_qkv_bias(),
                  .casts_output = exchanges_eight_bits(build, config) && !config.rewrites_qkv()},
      config.form.bias);
}

}  // namespace

MultiheadAttention::MultiheadAttention(Build& build, const std::string& name, const LayerConfig& config)
    : qkv_(make_qkv(build, name, config)),
      qk_norm_(config.qk_norm ? std::make_unique<QkNorm>(build, name, config) : nullptr),
      attention_(build, name + ".attention", config),
      projection_(build, name + ".proj",
                  {.in = config.attended_columns(),
                   .out = config.hidden,
                   .bias = config.form.bias,
                   .to_residual = true,
                   .casts_input_gradient = exchanges_eight_bits(build, config)}) {
  if (config.form.rope && !config.has_latents()) rotary_.emplace(name + ".rope", config);
}

Variable MultiheadAttention::forward(Runtime& runtime, const Variable& x) {
  Variable value = qkv_->forward(runtime, x);
  if (qk_norm_) value = qk_norm_->forward(runtime, value);
  if (rotary_) value = rotary_->forward(runtime, value);
  value = attention_.forward(runtime, value);
  return projection_.forward(runtime, value);
}

}  // namespace fp8lab

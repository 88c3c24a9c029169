#include "nn/layers/multihead_attention.h"

namespace fp8lab {

// A norm and a rotary embedding compute in high precision, so that Q, K and V are cast after them.
MultiheadAttention::MultiheadAttention(Build& build, const std::string& name, const LayerConfig& config)
    : qkv_(build, name + ".qkv", config.form.norm,
           {.in = config.hidden,
            .out = config.qkv_columns(),
            .bias = config.has_qkv_bias(),
            .casts_output = exchanges_eight_bits(build, config) && !config.rewrites_qkv()},
           config.form.bias),
      qk_norm_(config.qk_norm ? std::make_unique<QkNorm>(build, name, config) : nullptr),
      attention_(build, name + ".attention", config),
      projection_(build, name + ".proj",
                  {.in = config.heads * config.head_dim(),
                   .out = config.hidden,
                   .bias = config.form.bias,
                   .to_residual = true,
                   .casts_input_gradient = exchanges_eight_bits(build, config)}) {
  if (config.form.rope) rotary_.emplace(name + ".rope", config);
}

Variable MultiheadAttention::forward(Runtime& runtime, const Variable& x) {
  Variable value = qkv_.forward(runtime, x);
  if (qk_norm_) value = qk_norm_->forward(runtime, value);
  if (rotary_) value = rotary_->forward(runtime, value);
  value = attention_.forward(runtime, value);
  return projection_.forward(runtime, value);
}

}  // namespace fp8lab

#include "nn/layers/multihead_attention.h"

namespace fp8lab {

// A rotary embedding computes in high precision, so that Q, K and V are cast after it.
MultiheadAttention::MultiheadAttention(Build& build, const std::string& name, const LayerConfig& config)
    : qkv_(build, name + ".qkv", config.form.norm,
           {.in = config.hidden,
            .out = config.qkv_columns(),
            .bias = config.form.bias,
            .casts_output = exchanges_eight_bits(build, config) && !config.form.rope}),
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
  if (rotary_) value = rotary_->forward(runtime, value);
  value = attention_.forward(runtime, value);
  return projection_.forward(runtime, value);
}

}  // namespace fp8lab

#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "reference/expected.h"
#include "support/layer_run.h"

// The layers under test, and the error that each may have.
namespace fp8lab::nn_test {

/// `stored` counts the tensors that forward stores between a parameter and the loss on the longest path. Each is
/// rounded once in forward, and its gradient once in backward.
struct Layer {
  const char* name;
  const char* layer;
  const char* form;
  int stored;
  float dropout = 0.0f;
  bool fuse_mlp = false;
  std::int64_t layers = 1;
  bool uneven_split = false;
  std::int64_t head_dim = 0;
  bool qkv_bias_alone = false;
  bool qk_norm = false;
};

inline void PrintTo(const Layer& layer, std::ostream* out) { *out << layer.name; }

// Attention stores norm, qkv (once more for norms of Q and K, and rotated once more in llama), o and proj; the MLP
// norm, fc1, activation and fc2; residuals their sum and, with dropout, the kept entries.
inline constexpr Layer kLayers[] = {
    {"linear", "linear", "gpt", 1},
    {"linear_without_bias", "linear", "llama", 1},
    {"grouped_linear", "grouped_linear", "llama", 1},
    {"uneven_grouped_linear", "grouped_linear", "gpt", 1, 0.0f, false, 1, true},
    {"layernorm_linear", "layernorm_linear", "gpt", 2},
    {"rmsnorm_linear", "layernorm_linear", "llama", 2},
    {"gelu_mlp", "layernorm_mlp", "gpt", 4},
    {"swiglu_mlp", "layernorm_mlp", "llama", 4},
    {"attention", "multihead_attention", "gpt", 4},
    {"grouped_rotary_attention", "multihead_attention", "llama", 5},
    {.name = "wide_heads", .layer = "multihead_attention", .form = "gpt", .stored = 4, .head_dim = 6},
    {.name = "narrow_heads_qkv_bias",
     .layer = "multihead_attention",
     .form = "llama",
     .stored = 5,
     .head_dim = 2,
     .qkv_bias_alone = true},
    {.name = "gpt_qk_norm", .layer = "transformer_layer", .form = "gpt", .stored = 11, .head_dim = 6, .qk_norm = true},
    {.name = "qwen3", .layer = "transformer_layer", .form = "llama", .stored = 12, .head_dim = 6, .qk_norm = true},
    {"attention_dropout", "multihead_attention", "gpt", 4, 0.25f},
    {"gpt", "transformer_layer", "gpt", 10},
    {"llama", "transformer_layer", "llama", 11},
    {"gpt_fused_mlp", "transformer_layer", "gpt", 10, 0.0f, true},
    {"llama_fused_mlp", "transformer_layer", "llama", 11, 0.0f, true},
    {"gpt_dropout", "transformer_layer", "gpt", 12, 0.25f},
    {"llama_dropout_two_layers", "transformer_layer", "llama", 26, 0.25f, true, 2},
};

inline const Layer& layer_named(std::string_view name) {
  for (const Layer& layer : kLayers)
    if (name == layer.name) return layer;
  throw std::invalid_argument("no layer is called " + std::string(name));
}

/// All sums are short, so that one wrong term shows; all dimensions differ, so that exchanging two of them shows too.
inline LayerConfig tiny_config(const Layer& layer) {
  LayerConfig config;
  config.form = layer_form(layer.form);
  config.hidden = 8;
  config.heads = 2;
  config.kv_heads = config.form.rope ? 1 : 2;
  config.ffn = 12;
  config.seq = 5;
  config.batch = 2;
  config.dropout = layer.dropout;
  config.fuse_mlp = layer.fuse_mlp;
  config.uneven_split = layer.uneven_split;
  config.columns_of_head = layer.head_dim;
  config.qkv_bias_alone = layer.qkv_bias_alone;
  config.qk_norm = layer.qk_norm;
  return config;
}

/// True for the parameters of an expert without tokens. Nothing depends on them, and their gradients are zeros.
inline bool is_idle(const Layer& layer, std::string_view parameter) {
  return layer.uneven_split && parameter.find("experts[1]") != std::string_view::npos;
}

/// Blocks of 128 divide every dimension.
inline LayerConfig block_config(const Layer& layer) {
  LayerConfig config = tiny_config(layer);
  config.hidden = 128;
  config.heads = 4;
  config.kv_heads = config.form.rope ? 2 : 4;
  config.ffn = 256;
  config.seq = 64;
  if (layer.layer == std::string_view("grouped_linear")) config.seq *= 8;  // a block of tokens for each expert
  return config;
}

/// Inputs are small, so that the norm's epsilon matters, unless a case sets them otherwise.
inline support::LayerCase make_case(const Layer& layer, const LayerConfig& config, DType dtype = DType::kF32) {
  support::LayerCase layer_case;
  layer_case.model.layer = layer.layer;
  layer_case.model.layers = layer.layers;
  layer_case.model.config = config;
  layer_case.model.dtype = dtype;
  layer_case.input_scale = 0.1;
  layer_case.row_offset = 3 * config.tokens();
  return layer_case;
}

/// The number of roundings on the path to the loss and back to a gradient, its own included.
inline int roundings(const Layer& layer) { return 2 * layer.stored + 1; }

/// Relative error of FP32 results after `steps` operations. The roundings of a sum of n products are independent and
/// add up to sqrt(n) units of its magnitudes, and the magnitudes of random terms add up to sqrt(n) times their sum.
inline double f32_tolerance(const LayerConfig& config, int steps) {
  const std::int64_t longest = std::max({config.tokens(), config.activation_inputs(), config.qkv_columns()});
  return steps * static_cast<double>(longest) * reference::kUnit;
}

}  // namespace fp8lab::nn_test

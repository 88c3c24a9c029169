#include "nn/layer_table.h"

#include <fmt/core.h>

#include <array>

#include "core/row_by_name.h"
#include "nn/layers/grouped_linear.h"
#include "nn/layers/layernorm_linear.h"
#include "nn/layers/linear.h"
#include "nn/layers/multihead_attention.h"
#include "nn/layers/norm.h"
#include "nn/layers/op_fuser.h"
#include "nn/layers/transformer_layer.h"

namespace fp8lab {
namespace {

using Matrices = std::vector<QuantizedMatrix>;

Matrices square_product(const LayerConfig& config) {
  return {{"input", config.tokens(), config.hidden}, {"weight", config.hidden, config.hidden}};
}

Matrices no_products(const LayerConfig&) { return {}; }

Matrices group_products(const LayerConfig& config) {
  Matrices all{{"weight of an expert", config.hidden, config.hidden}};
  for (const std::int64_t rows : config.group_rows()) all.push_back({"input of a group", rows, config.hidden});
  return all;
}

/// The rows of all inputs are multiples of what recipes need: the layer pads them.
Matrices expert_products(const LayerConfig& config) {
  Matrices all{{"weight of an expert's fc1", config.activation_inputs(), config.hidden},
               {"weight of an expert's fc2", config.hidden, config.ffn}};
  if (config.shared_experts > 0)
    for (const QuantizedMatrix& matrix : {QuantizedMatrix{"input of shared experts", config.tokens(), config.hidden},
                                          {"shared fc1 weight", config.shared_inputs(), config.hidden},
                                          {"shared fc1 gradient", config.tokens(), config.shared_inputs()},
                                          {"shared fc2 input", config.tokens(), config.shared_ffn()},
                                          {"shared fc2 weight", config.hidden, config.shared_ffn()}})
      all.push_back(matrix);
  return all;
}

Matrices mlp_products(const LayerConfig& config) {
  if (config.routes_tokens()) return expert_products(config);
  return {{"fc1 input", config.tokens(), config.hidden},
          {"fc1 weight", config.activation_inputs(), config.hidden},
          {"fc1 gradient", config.tokens(), config.activation_inputs()},
          {"fc2 input", config.tokens(), config.ffn},
          {"fc2 weight", config.hidden, config.ffn}};
}

Matrices latent_products(const LayerConfig& config) {
  const std::int64_t tokens = config.tokens(), attended = config.attended_columns();
  const std::int64_t queries = config.heads * config.key_dim();
  const std::int64_t keys = config.heads * (config.head_dim() + config.value_dim());
  return {{"q_down input", tokens, config.hidden},
          {"q_down weight", config.q_rank, config.hidden},
          {"q_down gradient", tokens, config.q_rank},
          {"q_up weight", queries, config.q_rank},
          {"q_up gradient", tokens, queries},
          {"kv_down weight", config.kv_rank, config.hidden},
          {"kv_down gradient", tokens, config.kv_rank},
          {"kv_up weight", keys, config.kv_rank},
          {"kv_up gradient", tokens, keys},
          {"projection input", tokens, attended},
          {"projection weight", config.hidden, attended}};
}

Matrices attention_products(const LayerConfig& config) {
  if (config.has_latents()) return latent_products(config);
  const std::int64_t attended = config.attended_columns();
  return {{"qkv input", config.tokens(), config.hidden},
          {"qkv weight", config.qkv_columns(), config.hidden},
          {"qkv gradient", config.tokens(), config.qkv_columns()},
          {"projection input", config.tokens(), attended},
          {"projection weight", config.hidden, attended}};
}

Matrices transformer_products(const LayerConfig& config) {
  Matrices all = attention_products(config);
  for (const QuantizedMatrix& matrix : mlp_products(config)) all.push_back(matrix);
  return all;
}

std::unique_ptr<Module> make_linear(Build& build, const std::string& name, const LayerConfig& config) {
  return std::make_unique<Linear>(build, name,
                                  LinearShape{.in = config.hidden, .out = config.hidden, .bias = config.form.bias});
}

std::unique_ptr<Module> make_layernorm_linear(Build& build, const std::string& name, const LayerConfig& config) {
  return std::make_unique<LayerNormLinear>(
      build, name, config.form.norm, LinearShape{.in = config.hidden, .out = config.hidden, .bias = config.form.bias});
}

template <NormKind kKind>
std::unique_ptr<Module> make_norm(Build& build, const std::string& name, const LayerConfig& config) {
  return std::make_unique<Norm>(build, name, kKind, config.hidden, config.form.bias);
}

template <class Layer>
std::unique_ptr<Module> make(Build& build, const std::string& name, const LayerConfig& config) {
  return std::make_unique<Layer>(build, name, config);
}

constexpr std::array<std::string_view, 1> kLayerNormKeys{"model.bias"};
constexpr std::array<std::string_view, 2> kLinearKeys{"model.bias", "training.cache_weights"};
constexpr std::array<std::string_view, 4> kGroupedKeys{"model.bias", "model.experts", "model.split",
                                                       "training.cache_weights"};
constexpr std::array<std::string_view, 4> kNormLinearKeys{"model.form", "model.bias", "training.fused_quantize",
                                                          "training.cache_weights"};
constexpr std::array<std::string_view, 19> kMlpKeys{"model.form",
                                                    "model.ffn",
                                                    "model.swiglu_limit",
                                                    "model.experts",
                                                    "model.top_k",
                                                    "model.expert_ffn",
                                                    "model.shared_experts",
                                                    "model.dense_layers",
                                                    "model.router",
                                                    "model.router_scale",
                                                    "model.expert_groups",
                                                    "model.top_groups",
                                                    "model.router_bias_rate",
                                                    "model.router_aux_loss",
                                                    "model.op_fuser",
                                                    "model.bias",
                                                    "model.scaled_residuals",
                                                    "training.fused_quantize",
                                                    "training.cache_weights"};
constexpr std::array<std::string_view, 20> kAttentionKeys{"model.form",
                                                          "model.heads",
                                                          "model.kv_heads",
                                                          "model.head_dim",
                                                          "model.window",
                                                          "model.window_every",
                                                          "model.attention_sinks",
                                                          "model.qk_norm",
                                                          "model.kv_rank",
                                                          "model.q_rank",
                                                          "model.rope_dim",
                                                          "model.value_dim",
                                                          "model.bias",
                                                          "model.scaled_residuals",
                                                          "model.dropout",
                                                          "training.fused_quantize",
                                                          "training.cache_weights",
                                                          "training.fp8_attention",
                                                          "training.fp8_attention_backward",
                                                          "training.fp8_mha"};
constexpr std::array<std::string_view, 34> kTransformerKeys{"model.form",
                                                            "model.heads",
                                                            "model.kv_heads",
                                                            "model.head_dim",
                                                            "model.window",
                                                            "model.window_every",
                                                            "model.attention_sinks",
                                                            "model.qk_norm",
                                                            "model.kv_rank",
                                                            "model.q_rank",
                                                            "model.rope_dim",
                                                            "model.value_dim",
                                                            "model.ffn",
                                                            "model.swiglu_limit",
                                                            "model.experts",
                                                            "model.top_k",
                                                            "model.expert_ffn",
                                                            "model.shared_experts",
                                                            "model.dense_layers",
                                                            "model.router",
                                                            "model.router_scale",
                                                            "model.expert_groups",
                                                            "model.top_groups",
                                                            "model.router_bias_rate",
                                                            "model.router_aux_loss",
                                                            "model.op_fuser",
                                                            "model.bias",
                                                            "model.scaled_residuals",
                                                            "model.dropout",
                                                            "training.fused_quantize",
                                                            "training.cache_weights",
                                                            "training.fp8_attention",
                                                            "training.fp8_attention_backward",
                                                            "training.fp8_mha"};

constexpr std::array kLayers = {
    LayerRow{"layernorm", "LayerNorm, with a beta if the form has biases", make_norm<NormKind::kLayerNorm>, no_products,
             0, kLayerNormKeys},
    LayerRow{"rmsnorm", "RMSNorm", make_norm<NormKind::kRmsNorm>, no_products, 0, {}},
    LayerRow{"linear", "one matrix product", make_linear, square_product, 1, kLinearKeys},
    LayerRow{"grouped_linear", "one matrix product for each expert, over its group of tokens", make<GroupedLinear>,
             group_products, 1, kGroupedKeys},
    LayerRow{"layernorm_linear", "norm and matrix product as one node", make_layernorm_linear, square_product, 1,
             kNormLinearKeys},
    LayerRow{"layernorm_mlp", "norm, two products and the activation between as one node", make_mlp, mlp_products, 2,
             kMlpKeys},
    LayerRow{"multihead_attention", "norm, QKV projection, attention, output projection", make<MultiheadAttention>,
             attention_products, 2, kAttentionKeys},
    LayerRow{"transformer_layer", "attention and MLP, each behind a residual", make<TransformerLayer>,
             transformer_products, 4, kTransformerKeys},
};

}  // namespace

std::span<const LayerRow> layer_table() { return kLayers; }

const LayerRow& layer_row(std::string_view name) { return row_by_name(kLayers, "layer", name); }

std::string broken_layer_rule(const LayerRow& layer, const LayerConfig& config, const Recipe& recipe) {
  if (!recipe.quantized) return {};
  for (const QuantizedMatrix& matrix : layer.quantized(config))
    if (const std::string broken = broken_shape_rule(recipe, matrix.rows, matrix.cols); !broken.empty())
      return fmt::format("layer '{}', {}: {}", layer.name, matrix.what, broken);
  return {};
}

}  // namespace fp8lab

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "backend/kernels.h"
#include "behavior/behaviors.h"

namespace fp8lab {

/// What the models of a form have in common; form_table() has a row for each form.
struct LayerForm {
  std::string_view name;
  std::string_view title;
  NormKind norm = NormKind::kLayerNorm;
  ActivationKind activation = ActivationKind::kGelu;
  bool bias = true;
  bool rope = false;
  bool scales_embeddings = false;  ///< by the root of hidden, rounded to the embedding's type
};

/// Rows to a multiple of which the tokens of each expert in a mixture are padded: its products read them along rows and
/// along columns. Behaviors decide: 1 if the recipe does not quantize, unless pad_only_eight_bits is reverted; the rows
/// that products accept if it does, unless pad_groups_to_blocks is reverted.
std::int64_t row_multiple(const Recipe& recipe, const Behaviors& behaviors);

std::span<const LayerForm> form_table();
/// The form called `name`. Throws Error listing the known names if there is none.
const LayerForm& layer_form(std::string_view name);

struct LayerConfig {
  LayerForm form;
  std::int64_t hidden = 0;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t columns_of_head = 0;  ///< 0: hidden / heads
  std::int64_t q_rank = 0,
               kv_rank = 0;           ///< columns of the latents of LatentProjections; 0: one product makes Q, K and V
  std::int64_t rope_dim = 0;          ///< with latents: columns of a head of Q and K that are rotated
  std::int64_t columns_of_value = 0;  ///< with latents: columns of a head of V; 0: head_dim()
  bool qkv_bias_alone = false;        ///< the product that makes Q, K and V has a bias though the form has none
  std::int64_t window = 0;            ///< tokens that a query sees, its own and those before it; 0: all of them
  bool attention_sinks = false;       ///< each head has a learned logit, AttentionForwardArgs::sinks
  bool qk_norm = false;               ///< RMSNorm of every head of Q and K, before the rotary embedding
  std::int64_t ffn = 0;               ///< inner width of the MLP, or of each expert in a mixture
  float swiglu_limit = 0.0f;          ///< Activation::limit
  std::int64_t seq = 0;
  std::int64_t batch = 1;
  bool fp8_attention = false;          ///< if the recipe has formats for attention
  bool fp8_attention_backward = true;  ///< false: such attention uses the backward of attention in 16 bits
  bool fp8_mha = false;                ///< with both of these: linear layers and attention exchange eight bits
  bool fuse_mlp = false;               ///< the MLP is one chain of the op fuser
  float dropout = 0.0f;
  std::int64_t experts = 4;         ///< experts of a grouped linear, or of a mixture
  std::int64_t top_k = 0;           ///< experts of a token in a mixture; 0: one MLP for all tokens
  std::int64_t shared_experts = 0;  ///< experts of all tokens in a mixture, which the router does not choose
  bool sigmoid_router = false;      ///< RouteArgs::sigmoid
  float router_scale = 1.0f;        ///< what the weights of a token add up to
  std::int64_t expert_groups = 1;   ///< groups of experts, of which a token's experts are in `top_groups`
  std::int64_t top_groups = 1;
  float router_bias_rate = 0.0f;  ///< by how much a bias of the choice changes in a step; 0: there are no biases
  float router_aux_loss = 0.0f;   ///< RouterRule::aux_loss
  bool fp8_dispatch = false;      ///< what travels to other ranks' experts is cast before, if the recipe casts
  bool uneven_split = false;      ///< groups of different sizes, one of them empty, if there are several experts

  /// With latents the columns of a head of Q and K that are not rotated.
  std::int64_t head_dim() const { return columns_of_head > 0 ? columns_of_head : hidden / heads; }
  bool has_latents() const { return kv_rank > 0; }
  /// Columns of a head of Q and K, and of V.
  std::int64_t key_dim() const { return head_dim() + rope_dim; }
  std::int64_t value_dim() const { return columns_of_value > 0 ? columns_of_value : head_dim(); }
  bool has_qkv_bias() const { return form.bias || qkv_bias_alone; }
  /// True if Q and K change between the product that makes them and attention.
  bool rewrites_qkv() const { return form.rope || qk_norm; }
  std::int64_t tokens() const { return seq * batch; }
  bool routes_tokens() const { return top_k > 0; }
  /// Rows of each expert's group, in order; they add up to tokens(). An even split has equal groups; rows that the
  /// experts do not divide make some groups larger by one. The groups of an uneven split are multiples of
  /// gcd(tokens, 128), so that the blocks of a recipe that fit all tokens fit all groups.
  std::vector<std::int64_t> group_rows() const;
  /// Columns of the packed projection: queries, then keys, then values.
  std::int64_t qkv_columns() const { return (heads + kv_heads) * key_dim() + kv_heads * value_dim(); }
  /// Columns of what attention makes.
  std::int64_t attended_columns() const { return heads * value_dim(); }
  Activation activation() const { return {form.activation, swiglu_limit}; }
  /// Columns of the activation's input: gate and up for a gated activation.
  std::int64_t activation_inputs() const { return inputs_for(ffn); }
  /// Inner width of the shared experts, which are one MLP.
  std::int64_t shared_ffn() const { return shared_experts * ffn; }
  std::int64_t shared_inputs() const { return inputs_for(shared_ffn()); }
  std::int64_t inputs_for(std::int64_t width) const {
    return form.activation == ActivationKind::kGelu ? width : 2 * width;
  }
};

}  // namespace fp8lab

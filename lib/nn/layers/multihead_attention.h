#pragma once

#include <memory>
#include <optional>
#include <string>

#include "nn/cores/attention_core.h"
#include "nn/cores/qk_norm.h"
#include "nn/cores/rotary.h"
#include "nn/layer_config.h"
#include "nn/layers/latent_projections.h"
#include "nn/layers/layernorm_linear.h"
#include "nn/layers/linear.h"
#include "nn/module.h"

namespace fp8lab {

/// Norm and packed QKV projection, norm of Q and K if the model has it, rotary embedding if the form has it, attention,
/// output projection. If the model has latents, LatentProjections makes Q, K and V, rotated.
class MultiheadAttention final : public Module {
 public:
  MultiheadAttention(Build& build, const std::string& name, const LayerConfig& config);
  Variable forward(Runtime& runtime, const Variable& x) override;

 private:
  std::unique_ptr<Module> qkv_;
  std::unique_ptr<QkNorm> qk_norm_;  ///< null if the model has none
  std::optional<Rotary> rotary_;     ///< absent if `qkv_` rotates, or nothing does
  AttentionCore attention_;
  Linear projection_;
};

}  // namespace fp8lab

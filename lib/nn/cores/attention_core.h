#pragma once

#include <optional>
#include <string>

#include "nn/build.h"
#include "nn/cores/role_scales.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

/// Fused attention over a packed [tokens, (heads + 2 kv_heads) * head_dim] projection, as one node with inputs and
/// outputs in 16 bits. In eight bits (if requested, and if the recipe has attention formats) Q, K and V are cast inside
/// under one scale and saved as quantized storage; O is saved in the recipe's format. In 16 bits the packed projection
/// itself is saved.
class AttentionCore final : public Module {
 public:
  AttentionCore(Build& build, const std::string& name, const LayerConfig& config);
  Variable forward(Runtime& runtime, const Variable& qkv) override;

  /// Columns of Q, K and V in the packed projection.
  struct Split {
    Tensor q;
    Tensor k;
    Tensor v;
  };
  Split split(const Tensor& packed) const;

 private:
  friend class AttentionNode;
  friend class QuantizedAttentionNode;

  Variable forward_quantized(Runtime& runtime, const Variable& qkv);
  AttentionShape shape_at(const Runtime& runtime) const;

  std::string name_;
  LayerConfig config_;
  std::optional<AttentionFormats> formats_;  ///< absent: 16 bits
  std::optional<RoleScales> forward_scales_;
  std::optional<RoleScales> backward_scales_;
};

}  // namespace fp8lab

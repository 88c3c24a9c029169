#pragma once

#include <memory>
#include <optional>
#include <string>

#include "nn/build.h"
#include "nn/cores/role_scales.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

/// True if attention takes and returns eight bits (Transformer Engine's fp8_mha). Only a recipe whose O and gradients
/// are cast under scales with a history can: the products next to attention cast them as they make them.
bool exchanges_eight_bits(const Build& build, const LayerConfig& config);

/// Fused attention over a packed projection, all heads of Q, then of K, then of V (LayerConfig::qkv_columns()), as one
/// node with inputs and outputs in 16 bits. In eight bits (if requested, and if the recipe has attention formats) Q, K
/// and V are cast inside under one scale and saved as quantized storage; O is saved in the recipe's format. In 16 bits
/// the packed projection itself is saved. Forward in eight bits may have a backward in 16 bits (Transformer Engine's
/// NVTE_FP8_DPA_BWD=0): the packed projection is saved then, with the O that forward returned and the logarithms of its
/// sums over eight bits. If exchanges_eight_bits() holds, O leaves in the eight bits that backward reads, the gradient
/// of O comes quantized, and so does a packed projection that nothing rotates; its gradient leaves quantized then.
///
/// If ranks split sequences between them (Runtime::context_group), ops/ring_attention.h computes attention, which is a
/// collective in forward and in backward. It then saves Q and, in place of K and V, K and V of the next rank of the
/// ring.
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
  friend class QuantizedRingAttentionNode;

  /// Indices into forward_scales_ and backward_scales_.
  enum ForwardRole { kQkv, kS, kO };
  enum BackwardRole { kGradO, kGradP, kGradQkv };

  /// O in high precision, in eight bits, or both, as it leaves and as backward reads it.
  struct Output {
    Tensor o;
    QuantizedTensor o8;
  };

  Variable forward_quantized(Runtime& runtime, const Variable& qkv);
  Variable forward_ring(Runtime& runtime, const Variable& qkv);
  Variable forward_quantized_ring(Runtime& runtime, const Variable& qkv);
  void begin_quantized(Runtime& runtime);
  /// Casts O if the recipe does. `measured`: its amax is recorded already.
  Output cast_output(Runtime& runtime, Tensor o, bool measured);
  /// Backward must cast P with the scale of forward, but the history changes in between, so the scale is saved. Absent
  /// if backward computes in 16 bits.
  Tensor saved_scale_of_p(Runtime& runtime) const;
  std::int64_t query_columns() const { return config_.heads * config_.key_dim(); }
  std::int64_t key_columns() const { return config_.kv_heads * config_.key_dim(); }
  std::int64_t value_columns() const { return config_.kv_heads * config_.value_dim(); }
  /// `o` with a node whose backward computes in 16 bits.
  Variable with_plain_backward(Runtime& runtime, const Variable& qkv, const AttentionShape& shape, Tensor o,
                               const Tensor& lse);
  AttentionShape shape_at(const Runtime& runtime) const;
  /// How a node whose backward reads eight bits keeps the shells of Q, K and V. `casts`: attention itself casts them,
  /// not the product before it. Only what it cast under delayed scaling did Transformer Engine save as storage, which
  /// has shells; all else it saved as tensors.
  ShellPolicy shells_of(const Behaviors& behaviors, bool casts) const {
    return casts && formats_->qkv.amax_source == AmaxSource::kHistory ? behaviors.attention_shells
                                                                      : ShellPolicy::kMoveOut;
  }

  /// The gradient of the sinks, for attention_backward(); absent without sinks.
  Tensor make_sink_gradient(Device& device) const;

  std::string name_;
  LayerConfig config_;
  DType dtype_;  ///< type of activations and gradients in high precision
  bool exchanges_eight_bits_ = false;
  std::optional<AttentionFormats> formats_;  ///< absent: 16 bits
  std::optional<RoleScales> forward_scales_;
  std::optional<RoleScales> backward_scales_;
  std::unique_ptr<Parameter> sinks_;  ///< [heads], or null: AttentionForwardArgs::sinks
};

}  // namespace fp8lab

#pragma once

#include <memory>
#include <string>

#include "nn/cores/linear_core.h"
#include "nn/cores/norm_core.h"
#include "nn/cores/saving.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

/// Multi-head latent attention's way to Q, K and V, as one node (DeepSeek-V3). With n = norm(x):
///   q  = q_up(q_norm(q_down(n))):     heads * (head_dim + rope_dim) columns
///   kv = kv_up(kv_norm(kv_down(n))):  for each head the head_dim columns of its key, then its value
///   k_rope = n W^T:                   rope_dim columns, the rotated part of the keys of all heads
/// LatentHeadsArgs (backend/latent_kernels.h) defines how these become the packed projection of AttentionCore. All
/// norms are RMSNorm. The four products of latents are under the build's recipe; each casts its own input. The product
/// of k_rope reads and writes the build's type under every recipe: its few columns do not fill a block of scales.
///
/// Saves x and its statistics, n, and for each latent: n as its first product read it, that weight's copy, the latent,
/// its statistics, the norm's output and the second weight's copy.
class LatentProjections final : public Module {
 public:
  /// `name`: the layer's.
  LatentProjections(Build& build, const std::string& name, const LayerConfig& config);
  Variable forward(Runtime& runtime, const Variable& x) override;

 private:
  friend class LatentProjectionsNode;

  /// up(norm(down(n))).
  class Latent {
   public:
    Latent(Build& build, const std::string& name, std::int64_t hidden, std::int64_t rank, std::int64_t columns);

    struct Forward {
      LinearCore::Forward down, up;
      NormCore::Forward normed;
    };
    Forward forward(Runtime& runtime, const Tensor& n);
    static constexpr std::size_t kEntries = 6;  ///< that save() makes
    void save(ModuleNode& node, Forward forward) const;
    /// Returns the gradient of n. `first`: the first of the saved entries.
    Tensor backward(Runtime& runtime, Tensor grad, Restored& saved, std::size_t first);

   private:
    LinearCore down_;
    NormCore norm_;
    LinearCore up_;
  };

  std::string name_;
  LayerConfig config_;
  NormCore norm_;
  Latent q_, kv_;
  std::unique_ptr<Parameter> k_rope_;
};

}  // namespace fp8lab

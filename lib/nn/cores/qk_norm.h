#pragma once

#include <array>
#include <string>

#include "nn/build.h"
#include "nn/cores/norm_core.h"
#include "nn/layer_config.h"
#include "nn/module.h"

namespace fp8lab {

/// RMSNorm over the columns of every head of Q and of K in a packed projection; V is copied. Two vectors of head_dim,
/// "q_norm.gamma" and "k_norm.gamma", belong to all heads. Saves the packed projection and an f32 for each normed head
/// of a token. The kernels of norms read rows that lie one after the other, but the heads of a token lie among its
/// other columns. So Q and K are copied out of the projection first, in forward and in backward; PyTorch's RMSNorm
/// makes the same copy of a view that is not contiguous.
class QkNorm final : public Module {
 public:
  /// `name`: the layer's.
  QkNorm(Build& build, const std::string& name, const LayerConfig& config);
  Variable forward(Runtime& runtime, const Variable& qkv) override;

 private:
  friend class QkNormNode;

  /// Columns of the projection that one vector norms.
  struct Part {
    NormCore norm;
    std::int64_t begin, count;
  };

  /// These columns as [tokens * heads, head_dim], a copy.
  Tensor rows_of(Runtime& runtime, const Part& part, const Tensor& packed) const;
  /// Copies rows of rows_of() back.
  void put(Runtime& runtime, const Part& part, const Tensor& rows, const Tensor& packed) const;
  void copy_values(Runtime& runtime, const Tensor& from, const Tensor& to) const;

  std::string name_;
  std::int64_t head_dim_, values_begin_, values_count_;
  std::array<Part, 2> parts_;  ///< Q, then K
};

}  // namespace fp8lab

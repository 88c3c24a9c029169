#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/runtime.h"
#include "ops/rewrite.h"

namespace fp8lab {

/// Where the value that Adam optimises lies, if not in the parameter itself.
enum class MasterWeights {
  kNone,
  kF32,  ///< an f32 copy, of which the parameter is the rounding
  /// For bf16 parameters the low 16 bits of that copy, as i16, the parameter being the high ones (kernels.h has the
  /// rule): 2 bytes instead of 4. Other parameters get an f32 copy.
  kRemainder,
};

struct AdamOptions {
  double learning_rate = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  bool decoupled_decay = true;  ///< AdamW; otherwise decay joins the gradient (L2)
  MasterWeights master = MasterWeights::kNone;
  /// Types of the moments: f32, bf16, f16 or e4m3, the last two with a scale per tensor. A second moment in e4m3 keeps
  /// what is within 2^-18 of its largest element; what is below becomes 0, and such elements move by mean / epsilon.
  DType exp_avg = DType::kF32;
  DType exp_avg_sq = DType::kF32;
  /// Gradients are multiplied by min(1, max_grad_norm / norm), norm being that of all gradients together; 0: they are
  /// not.
  double max_grad_norm = 0.0;
  /// The ranks over which shards make up the unsharded parameter; null: this rank has all of it. A parameter that is
  /// not sharded is counted once, on the first of them.
  ProcessGroup* norm_group = nullptr;
};

/// What Adam keeps for one parameter. `master` is absent where the parameter is f32 or no copy was asked for; the
/// scales are there for f16 and e4m3 moments only.
struct AdamState {
  Tensor exp_avg;
  Tensor exp_avg_sq;
  Tensor exp_avg_scale;
  Tensor exp_avg_sq_scale;
  Tensor master;
};

/// Adam over a list of parameters in one launch, which also casts weights in eight bits whose scale is known
/// beforehand, and measures those whose scale comes from the entire tensor. Per element, in f32 and in this order:
///   m = m + w1 (g - m);  v = v + w2 (g^2 - v)
///   p -= learning_rate * ((m / c1) / (sqrt(v / c2) + epsilon) + weight_decay p)
/// with w = 1 - beta and c = 1 - (1 - w)^step from moment_rule.h; L2 adds weight_decay p to g first. p, m and v are
/// used as computed, and rounded to their types afterwards. Of one step's roundings only that of m + ..., v + ... is of
/// the moment's size, so that after t steps v / c2 is within about min(t, 1 / w2) half units of the exact average of
/// squares. A v that overflowed is NaN from the next step on, and so is the parameter. State is made at the first step.
///
/// Of a sharded parameter the local shard is updated; a shard without elements is fine.
///
/// Parameters in eight bits need a master. In every step, with or without a gradient, the master is rounded to the
/// parameter's nominal type and cast from there, both orientations, their scales and the amax: so eight-bit weights
/// hold, bit for bit, what casting 16-bit ones in every forward would give, the scale of that forward included. Casts
/// are collective where shards are measured together, hence `parameters` must be alike on all ranks.
///
/// A master starts from the value the parameter was initialised with, in its nominal type, made again from its seed,
/// not from the eight bits that were cast from it: upstream preserves that value for the same reason, so that both
/// directions to hold weights start, and therefore stay, equal. Once the weights have been changed by another hand it
/// starts from those.
class Adam {
 public:
  /// `parameters` are the entire ones. Throws Error where a parameter in eight bits gets no master, or a type is not
  /// for moments.
  Adam(std::vector<Parameter*> parameters, const AdamOptions& options);

  /// Parameters without a gradient keep their value and moments; the step counts for all.
  void step(Runtime& runtime);
  std::int64_t steps() const { return steps_; }

  /// The norm that the last step clipped by, f32 [1]; absent without clipping.
  const Tensor& grad_norm() const { return grad_norm_; }

  // For checkpoints.
  const AdamOptions& options() const { return options_; }
  std::span<Parameter* const> parameters() const { return parameters_; }
  /// Makes the state that is missing.
  void make_state(Runtime& runtime);
  /// One for each parameter, in their order; empty before the first step.
  std::span<const AdamState> state() const { return states_; }
  void drop_state() { states_.clear(); }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  AdamState new_state(Runtime& runtime, const Parameter& shard) const;
  Tensor new_master(Runtime& runtime, const Parameter& shard) const;
  void clip(Runtime& runtime);
  void list_rewrites(bool unwrap);
  void list_tensors(bool unwrap);

  std::vector<Parameter*> parameters_;
  AdamOptions options_;
  std::vector<AdamState> states_;
  // Kept between steps, so that a step allocates nothing.
  std::vector<AdamTensor> described_;  ///< each state as the kernel sees it, without what changes from step to step
  std::vector<AdamTensor> tensors_;
  std::vector<Rewrite> rewrites_;
  Rewriter rewriter_;
  std::vector<MatrixView> gradients_;
  Tensor square_sum_;
  Tensor grad_norm_;
  Tensor clip_coefficient_;
  std::int64_t steps_ = 0;
};

}  // namespace fp8lab

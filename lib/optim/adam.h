#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "autograd/runtime.h"
#include "ops/rewrite.h"

namespace fp8lab {

class AdamHooks;

/// The place of the value that Adam updates, if it is not the parameter itself.
enum class MasterWeights {
  kNone,
  kF32,  ///< an f32 copy; the parameter is its rounding
  /// For bf16 parameters the low 16 bits of the f32 value, as i16; the parameter has the high 16 bits (rule:
  /// kernels.h). This needs 2 bytes instead of 4. Other parameters get an f32 copy.
  kRemainder,
};

struct AdamOptions {
  double learning_rate = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  bool decoupled_decay = true;       ///< AdamW; otherwise decay is added to the gradient (L2)
  bool decay_only_matrices = false;  ///< vectors, that is biases and parameters of norms, do not decay
  MasterWeights master = MasterWeights::kNone;
  /// bf16 parameters without a master are rounded up or down at random, so that updates below half a unit of their last
  /// bit are not lost but taken with a probability (stochastic_bf16() of core/float16.h). What an element draws follows
  /// from `seed`, the parameter's name, the number of the step and the element's index in the unsharded parameter, so
  /// that sharding changes nothing.
  bool stochastic_rounding = false;
  std::uint64_t seed = 0;
  /// Types of the moments: f32, bf16, f16 or e4m3; f16 and e4m3 have a scale per tensor. A second moment in e4m3 keeps
  /// values within 2^-18 of its largest element; smaller ones become 0, and such elements move by mean / epsilon.
  DType exp_avg = DType::kF32;
  DType exp_avg_sq = DType::kF32;
  /// Gradients are multiplied by min(1, max_grad_norm / norm); norm is the norm of all gradients together. 0: no
  /// clipping.
  double max_grad_norm = 0.0;
  /// The ranks whose shards make up the unsharded parameters; null: this rank has all rows. A parameter that is not
  /// sharded is counted once, on the first of these ranks.
  ProcessGroup* norm_group = nullptr;
};

/// Adam's state of one parameter. `master` is absent if the parameter is f32 or no master was requested. Scales exist
/// only for f16 and e4m3 moments.
struct AdamState {
  Tensor exp_avg;
  Tensor exp_avg_sq;
  Tensor exp_avg_scale;
  Tensor exp_avg_sq_scale;
  Tensor master;
};

/// True if the master of `shard` is the low 16 bits of its value in FP32, which are 0 at first.
bool keeps_remainder(const AdamOptions& options, const Parameter& shard);

/// Adam over a list of parameters, in one launch for parameter groups that have counted the same steps and decay alike.
/// The launch also casts eight-bit weights whose scale is known beforehand, and measures those whose scale comes from
/// the entire tensor. Per element, in f32 and in this order:
///   m = m + w1 (g - m);  v = v + w2 (g^2 - v)
///   p -= learning_rate * ((m / c1) / (sqrt(v / c2) + epsilon) + weight_decay p)
/// with w = 1 - beta and c = 1 - (1 - w)^step from moment_rule.h; L2 adds weight_decay p to g first. p, m and v are
/// used as computed, and rounded to their types afterwards. In one step only the rounding of the sums m + ... and v +
/// ... has the size of the moment's last bit, so after t steps v / c2 is within about min(t, 1 / w2) half units of the
/// exact average of squares. A v that overflows is NaN from the next step on, and so is the parameter, unless moments
/// are in E4M3, which saturates. State is made at the first step.
///
/// For a sharded parameter, Adam updates the local shard, which may be empty.
///
/// Parameters are in two groups, matrices and vectors, whose steps are counted apart: trainings usually decay only the
/// first group. The other options are the same for both groups. A group is empty on a rank that has no elements of it.
///
/// Parameters in eight bits need a master. In every step, with or without a gradient, the master is rounded to the
/// parameter's nominal type and cast: both orientations, their scales and the amax. So eight-bit weights are equal, bit
/// for bit, to 16-bit weights that are cast in every forward, including the scale of that forward. Casts are collective
/// if shards are measured together, so `parameters` must be alike on all ranks.
///
/// A master starts from the value that the parameter was initialised with, in its nominal type, which is kept in host
/// memory or computed again from its seed (Parameter::initial). So FP8 weights and weights in 16 bits start
/// equal, and stay equal. If the value is lost, or other code has changed the weights, the master starts from the eight
/// bits.
class Adam {
 public:
  /// `parameters` are the unsharded ones. Throws Error if a parameter in eight bits gets no master, or if a type cannot
  /// store moments.
  Adam(std::vector<Parameter*> parameters, const AdamOptions& options);
  ~Adam();

  /// Sets the rate of the steps from now on.
  void set_learning_rate(double rate) { options_.learning_rate = rate; }
  /// Parameters without a gradient keep their value and moments, but the step counts for all parameters.
  void step(Runtime& runtime);
  /// The largest count of a group; all groups count every step.
  std::int64_t steps() const;

  /// The norm of all gradients in the last step, f32 [1]; absent without clipping.
  const Tensor& grad_norm() const { return grad_norm_; }

  // For saved training state.
  const AdamOptions& options() const { return options_; }
  std::span<Parameter* const> parameters() const { return parameters_; }
  /// Makes the state if it is missing.
  void make_state(Runtime& runtime);
  /// One entry for each parameter, in their order; empty before the first step.
  std::span<const AdamState> state() const { return states_; }
  void drop_state() { states_.clear(); }
  using GroupSteps = std::array<std::int64_t, 2>;  ///< steps of matrices, of vectors
  static std::size_t group_of(const Parameter& parameter);
  const GroupSteps& group_steps() const { return steps_; }
  void set_group_steps(const GroupSteps& steps) { steps_ = steps; }

 private:
  AdamState new_state(Runtime& runtime, const Parameter& parameter) const;
  Tensor new_master(Runtime& runtime, const Parameter& shard, const Shape& state_shape) const;
  void clip(Runtime& runtime);
  void list_rewrites();
  void list_tensors(std::optional<std::size_t> group);

  std::vector<Parameter*> parameters_;
  AdamOptions options_;
  std::vector<AdamState> states_;
  std::unique_ptr<AdamHooks> hooks_;  ///< made with the first state
  // These members are kept between steps, so that a step allocates nothing.
  std::vector<AdamTensor> described_;  ///< each state as kernel arguments, without the fields that change in every step
  std::vector<AdamTensor> tensors_;
  std::vector<Rewrite> rewrites_;
  Rewriter rewriter_;
  std::vector<MatrixView> gradients_;
  Tensor square_sum_;
  Tensor grad_norm_;
  Tensor clip_coefficient_;
  GroupSteps steps_{};
};

}  // namespace fp8lab

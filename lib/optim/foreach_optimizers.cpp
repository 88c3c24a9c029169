#include "optim/foreach_optimizers.h"

#include <cmath>
#include <utility>

#include "core/check.h"
#include "ops/elementwise.h"
#include "optim/moment_rule.h"
#include "optim/shards.h"

namespace fp8lab {
namespace {

/// The shards of a step: those with a gradient.
struct StepLists {
  TensorList params, grads;
  std::vector<std::size_t> at;  ///< their indices in the optimizer's parameters
  TensorList decayed;
  std::vector<std::size_t> decayed_at;  ///< indices of `decayed` in `params`

  StepLists(const std::vector<Parameter*>& parameters, bool decays_only_matrices) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      Parameter& shard = local_shard(*parameters[i]);
      if (!shard.grad) continue;
      shard.initial.reset();
      if (!decays_only_matrices || is_matrix(shard)) {
        decayed.push_back(ListMember::of(shard));
        decayed_at.push_back(grads.size());
      }
      params.push_back(ListMember::of(shard));
      grads.push_back(ListMember::of(shard.grad));
      at.push_back(i);
    }
  }

  /// Adds `decay` times the parameter to copies of the gradients, which take the gradients' place.
  void decay_gradients(Runtime& runtime, double decay, HolderId workspace) {
    grads = foreach_copy(runtime, grads, workspace);
    TensorList decayed_grads;
    for (const std::size_t index : decayed_at) decayed_grads.push_back(grads[index]);
    foreach_add(runtime, decayed_grads, decayed, decay);
  }
};

}  // namespace

ForeachAdam::ForeachAdam(std::vector<Parameter*> parameters, const AdamOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  const bool plain = options.master == MasterWeights::kNone && options.exp_avg == DType::kF32 &&
                     options.exp_avg_sq == DType::kF32 && options.max_grad_norm == 0.0;
  check(plain, "ForeachAdam: it has neither masters nor other moments than f32 nor clipping; use Adam");
}

void ForeachAdam::make_state(Runtime& runtime) {
  if (exp_avg_.size() == parameters_.size()) return;
  Device& device = runtime.device;
  exp_avg_.clear();  // left by an attempt for which there was not enough memory
  exp_avg_sq_.clear();
  for (const Parameter* parameter : parameters_) {
    const Parameter& shard = local_shard(*parameter);
    const TensorSpec spec{shape_of(shard), DType::kF32};
    for (const auto& [moments, what] : {std::pair{&exp_avg_, "exp_avg"}, {&exp_avg_sq_, "exp_avg_sq"}}) {
      const HolderId holder = device.holder(HolderKind::kOptimizerState, shard.name, what);
      fill(device, moments->emplace_back(device.allocate(spec, holder)), 0.0f);
    }
  }
}

void ForeachAdam::step(Runtime& runtime) {
  make_state(runtime);
  ++steps_;
  StepLists lists(parameters_, options_.decay_only_matrices);
  TensorList exp_avg, exp_avg_sq;
  for (const std::size_t index : lists.at) {
    exp_avg.push_back(ListMember::of(exp_avg_[index]));
    exp_avg_sq.push_back(ListMember::of(exp_avg_sq_[index]));
  }
  const MomentRule mean = moment_rule(options_.beta1, steps_), square = moment_rule(options_.beta2, steps_);
  const HolderId workspace = runtime.workspace("foreach_adam");

  if (options_.weight_decay != 0.0) {
    if (options_.decoupled_decay)
      foreach_scale(runtime, lists.decayed, 1.0 - options_.learning_rate * options_.weight_decay);
    else
      lists.decay_gradients(runtime, options_.weight_decay, workspace);
  }
  foreach_lerp(runtime, exp_avg, lists.grads, mean.weight);
  foreach_lerp_product(runtime, exp_avg_sq, lists.grads, lists.grads, square.weight);
  TensorList denominator = foreach_copy(runtime, exp_avg_sq, workspace);
  foreach_sqrt(runtime, denominator);
  foreach_scale(runtime, denominator, 1.0 / std::sqrt(square.correction));
  foreach_add(runtime, denominator, options_.epsilon);
  foreach_addcdiv(runtime, lists.params, exp_avg, denominator, -options_.learning_rate / mean.correction);
}

Sgd::Sgd(std::vector<Parameter*> parameters, const SgdOptions& options)
    : parameters_(std::move(parameters)), options_(options) {}

void Sgd::step(Runtime& runtime) {
  StepLists lists(parameters_, options_.decay_only_matrices);
  if (options_.weight_decay != 0.0) lists.decay_gradients(runtime, options_.weight_decay, runtime.workspace("sgd"));
  foreach_add(runtime, lists.params, lists.grads, -options_.learning_rate);
}

}  // namespace fp8lab

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "optim/adam.h"
#include "optim/saved_state_items.h"
#include "optim/shards.h"

namespace fp8lab {

/// One update of all of Adam's parameters, in their order.
struct AdamUpdate {
  std::span<Parameter* const> parameters;
  std::span<const AdamState> states;
  std::span<AdamTensor> described;  ///< the states as the kernel reads and writes them
  std::span<Rewrite> rewrites;      ///< rewrites of the quantized parameters
};

/// Points at which a reverted fix acts on Adam; the defaults are the fixed behaviour. Called once for a step or a
/// parameter. An Adam has hooks of its own.
class AdamHooks {
 public:
  virtual ~AdamHooks() = default;

  /// The shape in which the state of `parameter` is made.
  virtual Shape state_shape(const Parameter& parameter) const { return shape_of(local_shard(parameter)); }
  /// True if `parameter` is updated as its master, and cast from it.
  virtual bool is_quantized(const Parameter& parameter) const { return local_shard(parameter).in_eight_bits(); }
  virtual void count_step(std::span<Parameter* const> /*parameters*/, Adam::GroupSteps& steps) const {
    for (std::int64_t& step : steps) ++step;
  }
  /// Leaves the gradients whose squares are added up. Lists of tensors have none without elements (launch_tables.h).
  virtual void choose_for_norm(std::vector<MatrixView>& gradients) {
    std::erase_if(gradients, [](const MatrixView& gradient) { return gradient.numel() == 0; });
  }
  /// Before the first launch of Adam's kernel.
  virtual void before_update(Runtime& /*runtime*/, const AdamUpdate& /*update*/) {}
  /// True if the kernel is launched for parameter `index`, which has a gradient.
  virtual bool is_launched(std::size_t /*index*/) const { return true; }
  /// After the last launch and the casts.
  virtual void after_update(Runtime& /*runtime*/, const AdamUpdate& /*update*/) {}
};

/// The hooks under `behaviors`, of an Adam with `options`.
std::unique_ptr<AdamHooks> make_adam_hooks(const Behaviors& behaviors, const AdamOptions& options);

/// Points at which a reverted fix acts on list operations and saved state; the defaults are the fixed behaviour.
class OptimHooks {
 public:
  virtual ~OptimHooks() = default;

  /// Before the results of a list operation are cast back into its quantized members.
  virtual void before_write_back(std::vector<Rewrite>& /*rewrites*/) {}
  /// Once the tensors of parameters are listed to be saved or loaded, in the order of the parameters.
  virtual void after_listing(const TrainingState& /*state*/, std::vector<SavedItem>& /*items*/) {}
};

std::unique_ptr<OptimHooks> make_optim_hooks(const Behaviors& behaviors);

}  // namespace fp8lab

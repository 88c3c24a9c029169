#pragma once

#include <vector>

#include "harness/predict/predict_nodes.h"

namespace fp8lab::closed_form {

/// Where a layer stands among those that a pass comes to; the only one is both.
struct LayerPosition {
  bool is_first = false;
  bool is_last = false;
};

/// Layers that differ by their position alone, in the order of a pass.
template <class ScheduleOf>
Schedule in_order(std::int64_t layers, const ScheduleOf& schedule_of) {
  if (layers == 1) return schedule_of(LayerPosition{.is_first = true, .is_last = true});
  return schedule_of(LayerPosition{.is_first = true}) + repeat(layers - 2, schedule_of(LayerPosition{})) +
         schedule_of(LayerPosition{.is_last = true});
}

/// Sums over one layer, and its schedules from its input x alive. `scenario` and `layer` outlive it.
class LayerAccount {
 public:
  LayerAccount(const Scenario& scenario, const Layer& layer);

  /// Until the values of all its parameters are there, and the scales and histories of its modules.
  Schedule made() const;
  /// The same in two stages, the first for all layers before the second: how sharded models are made.
  Schedule declared() const;
  Schedule sharded() const;

  /// To the layer's output and what backward needs of it alive.
  Schedule forward(bool in_first_step, LayerPosition position) const;
  /// From the gradient of the output to that of the input. The model's first layer, to which this pass comes last,
  /// keeps its input and lets its gradient go.
  Schedule backward(LayerPosition position) const;

  std::vector<ParameterNumbers> parameters;
  bool stops = false;   ///< training cannot go on under this scenario
  Bytes kept = 0;       ///< of parameters, from step to step
  Bytes gradients = 0;  ///< from backward to the optimizer's step
  Bytes recipe_state = 0, stash = 0, kept_stash = 0, retained = 0, unemptied = 0;
  Gather forward_gather, backward_gather;
  Bytes unsharded_gradients = 0;
  std::int64_t forward_amaxes = 0, backward_amaxes = 0;
  Bytes saved = 0;  ///< from forward to backward, without the layer's input
  Bytes held = 0;   ///< the same, or what a checkpointed layer holds instead, and unsharded parameters that stay
  bool keeps_input = false;  ///< until its backward

 private:
  Schedule gathered(const Gather& own, LayerPosition position) const;
  Schedule merged() const;
  Schedule full_forward() const;
  Schedule first_forward(bool in_first_step) const;
  Schedule backward_of_nodes(bool is_first, bool wanted) const;

  const Scenario& scenario_;
  const Layer& layer_;
  Bytes stream_;
  Bytes transposes_ = 0;        ///< made beside the unsharded parameters
  Bytes early_transposes_ = 0;  ///< those that forward makes
};

}  // namespace fp8lab::closed_form

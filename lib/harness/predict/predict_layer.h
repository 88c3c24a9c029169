#pragma once

#include <vector>

#include "harness/predict/predict_nodes.h"

namespace fp8lab::closed_form {

/// The micro-batch of a pass: where memory is as the passes before left it.
struct MicroBatch {
  bool first_of_run = false;
  bool first_of_step = false;  ///< its backward makes gradients; those of later ones are added to them
};

/// The position of a layer in the order of a pass. A single layer is both first and last.
struct LayerPosition {
  bool is_first = false;
  bool is_last = false;
};

/// The schedule of a pass over layers that differ by their position only.
template <class ScheduleOf>
Schedule in_order(std::int64_t layers, const ScheduleOf& schedule_of) {
  if (layers == 1) return schedule_of(LayerPosition{.is_first = true, .is_last = true});
  return schedule_of(LayerPosition{.is_first = true}) + repeat(layers - 2, schedule_of(LayerPosition{})) +
         schedule_of(LayerPosition{.is_last = true});
}

/// One layer in the passes of a run.
struct LayersOfRun {
  Layer first_validation;     ///< in the first validation batch
  Layer later_validation;     ///< in every other validation batch
  Layer first;                ///< in the first micro-batch of the run
  Layer later_steps;          ///< in the first micro-batch of later steps
  Layer later_micro_batches;  ///< in every other micro-batch

  const Layer& of(MicroBatch at) const {
    return at.first_of_run ? first : at.first_of_step ? later_steps : later_micro_batches;
  }
};
LayersOfRun make_layers(const CellNumbers& cell, std::string_view name);

/// Sums over one layer, and its schedules; each starts with the layer's input alive. `cell` and `layers` must outlive
/// this object.
class LayerAccount {
 public:
  LayerAccount(const CellNumbers& cell, const LayersOfRun& layers);

  /// The construction of the layer: the values of its parameters, and the scales and histories of its modules.
  Schedule made() const;
  /// The construction of a sharded layer, in two stages; the first runs for all layers before the second.
  Schedule declared() const;
  Schedule sharded() const;

  /// Forward in a validation batch: at the end the layer's output is alive.
  Schedule validation(bool first) const {
    return first_forward(first ? layers_.first_validation : layers_.later_validation, first);
  }
  /// At the end the layer's output and what backward needs are alive.
  Schedule forward(MicroBatch at, LayerPosition position) const;
  /// From the gradient of the output to the gradient of the input. The model's first layer, which is the last of this
  /// pass, keeps its input and frees the gradient of it.
  Schedule backward(MicroBatch at, LayerPosition position) const;

  std::vector<ParameterNumbers> parameters;
  bool stops = false;   ///< training of this cell stops with an error
  Bytes kept = 0;       ///< parameters, stored from step to step
  Bytes gradients = 0;  ///< sharded gradients, alive from the step's first backward to the optimizer's step
  Bytes cached = 0;     ///< copies of weights that modules keep from the first forward on
  Bytes recipe_state = 0, stash = 0, retained = 0, unemptied = 0;
  Gather forward_gather, backward_gather;
  Bytes unsharded_gradients = 0;
  std::int64_t forward_amaxes = 0, backward_amaxes = 0;
  Bytes saved = 0;  ///< saved from forward to backward, without the layer's input
  Bytes held = 0;   ///< alive between the passes: `saved`, or what checkpointing keeps, and parameters left unsharded
  bool keeps_input = false;      ///< the layer's input lives until its backward
  Bytes left_transposes = 0;     ///< of gathered weights: alive from backward to the next forward
  bool transposes_stay = false;  ///< forward does not free those either

 private:
  Schedule gathered(const Gather& own, LayerPosition position, Bytes dropped) const;
  Schedule merged() const;
  Schedule full_forward(const Layer& layer) const;
  Schedule first_forward(const Layer& layer, bool first_of_run) const;
  Schedule backward_of_nodes(const Layer& layer, bool is_first, bool wanted) const;

  const CellNumbers& cell_;
  const LayersOfRun& layers_;
  Bytes stream_;
  Bytes transposes_ = 0;        ///< made beside the unsharded parameters
  Bytes early_transposes_ = 0;  ///< those that forward makes
  Bytes reordered_ = 0;         ///< those that gathers make; forward's live until backward's gather
};

}  // namespace fp8lab::closed_form

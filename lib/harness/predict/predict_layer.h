#pragma once

#include <deque>
#include <iterator>
#include <vector>

#include "harness/predict/predict_nodes.h"

namespace fp8lab::closed_form {

/// The micro-batch of a pass: the passes before it determine the state of memory.
struct MicroBatch {
  bool first_of_run = false;
  bool first_of_step = false;  ///< its backward makes gradients; later ones add theirs to them
};

class LayerAccount;

/// The position of a layer in the order of a pass. A single layer is both first and last.
struct LayerPosition {
  bool is_first = false;
  const LayerAccount* next = nullptr;  ///< the layer after it in this pass; null for the last one

  bool is_last() const { return next == nullptr; }
};

/// One layer in the passes of a run.
struct LayersOfRun {
  Layer built;                ///< its parameters and scales
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
  Schedule validation(bool first, LayerPosition position) const;
  /// At the end the layer's output and what backward needs are alive; of a frozen layer the output.
  Schedule forward(MicroBatch at, LayerPosition position) const;
  /// From the gradient of the output to the gradient of the input. The model's first layer, which is the last of this
  /// pass, keeps its input and frees the gradient of it.
  Schedule backward(MicroBatch at, LayerPosition position) const;

  std::vector<ParameterNumbers> parameters;
  bool stops = false;                                 ///< training of this cell stops with an error, or may
  std::int64_t fp8_weights = 0, refused_weights = 0;  ///< weights to be kept in FP8, and those that sharding refuses
  Bytes kept = 0;                                     ///< parameters, stored from step to step
  Bytes gradients = 0;     ///< sharded gradients, alive from the step's first backward to the optimizer's step
  Bytes cached = 0;        ///< copies of weights that modules keep from the first forward on
  Bytes kept_results = 0;  ///< results of products and attention, from the first forward to the second
  Bytes recipe_state = 0, stash = 0, retained = 0, unemptied = 0;
  Bytes router_counts = 0;  ///< tokens of each expert, which ranks add up once per step
  Gather forward_gather, backward_gather;
  GradientBytes reduced_gradients;
  std::int64_t forward_amaxes = 0, backward_amaxes = 0;
  std::int64_t forwards = 1;        ///< 2: backward recomputes the layer
  std::int64_t trained_groups = 1;  ///< `groups`, or 0 of a frozen layer
  std::int64_t groups = 1;  ///< groups of parameters; 2 if other ranks shard its experts than its other parameters
  // Exchanges of one forward, and of backward without recomputation.
  Exchanges forward_ring, backward_ring;
  Exchanges forward_to_experts, backward_to_experts, forward_counts;
  Bytes saved = 0;  ///< saved from forward to backward, without the layer's input
  Bytes held = 0;   ///< alive between the passes: `saved`, or what checkpointing keeps, and parameters left unsharded
  bool keeps_input = false;      ///< the layer's input lives until its backward
  Bytes left_transposes = 0;     ///< transposes of gathered weights: alive from backward to the next forward
  bool transposes_stay = false;  ///< forward neither frees those nor makes them again

 private:
  Schedule without_backward(const Layer& layer, bool first_of_run, bool evaluates, LayerPosition position) const;
  /// A frozen layer has no backward.
  void drop_backward();
  Schedule gathered(Gather LayerAccount::* of_pass, LayerPosition position, Bytes dropped, bool finds) const;
  Schedule merged(bool evaluates, bool keeps_output) const;
  Schedule full_forward(const Layer& layer) const;
  Schedule first_forward(const Layer& layer, bool first_of_run, bool evaluates) const;
  /// `holds_input`: the training loop does.
  Schedule backward_of_nodes(const Layer& layer, bool holds_input, bool wanted) const;

  const CellNumbers& cell_;
  const LayersOfRun& layers_;
  Bytes stream_;
  Bytes transposes_ = 0;        ///< transposes of gathered weights
  Bytes early_transposes_ = 0;  ///< those that a gather of forward makes
};

/// The layers of a cell's model, in order, as runs of equal layers: one run if neither the recipe nor recomputation
/// leaves any out, if no layer is frozen, and if all or none have a mixture of experts.
class LayersAccount {
 public:
  LayersAccount(const CellConfig& config, Arm arm);

  std::int64_t count() const;
  bool all_frozen() const { return frozen_runs_ == std::ssize(runs_); }
  const LayerAccount& first() const { return runs_.front().layer; }
  /// The sum over all layers of a figure of each.
  template <class Figure>
  std::int64_t sum(Figure LayerAccount::* figure) const {
    std::int64_t total = 0;
    for (const Run& run : runs_) total += run.count * static_cast<std::int64_t>(run.layer.*figure);
    return total;
  }
  /// Calls visit(count, layer) for every run.
  template <class Visit>
  void visit(const Visit& visit) const {
    for (const Run& run : runs_) visit(run.count, run.layer);
  }
  /// The schedules of all layers, one after the other.
  template <class ScheduleOf>
  Schedule each(const ScheduleOf& schedule_of) const {
    Schedule schedule;
    visit([&](std::int64_t count, const LayerAccount& layer) { schedule += repeat(count, schedule_of(layer)); });
    return schedule;
  }
  /// The schedule of a pass, forward or backward through the layers: schedule_of(layer, position). Backward ends before
  /// the frozen layers.
  template <class ScheduleOf>
  Schedule forward(const ScheduleOf& schedule_of) const {
    return pass(runs_.begin(), runs_.end(), schedule_of);
  }
  template <class ScheduleOf>
  Schedule backward(const ScheduleOf& schedule_of) const {
    return pass(runs_.rbegin(), runs_.rend() - frozen_runs_, schedule_of);
  }

 private:
  struct Run {
    Run(std::int64_t layers, const CellConfig& config, Arm arm)
        : count(layers), cell(config, arm), passes(make_layers(cell, config.model.layer)), layer(cell, passes) {}

    std::int64_t count;
    CellNumbers cell;
    LayersOfRun passes;
    LayerAccount layer;
  };

  /// Layers of a run differ by their position only.
  template <class Iterator, class ScheduleOf>
  static Schedule pass(Iterator begin, Iterator end, const ScheduleOf& schedule_of) {
    Schedule schedule;
    for (Iterator run = begin; run != end; ++run) {
      const LayerAccount& layer = run->layer;
      const LayerAccount* const beyond = std::next(run) == end ? nullptr : &std::next(run)->layer;
      const bool is_first = run == begin;
      if (run->count > 1)
        schedule += schedule_of(layer, LayerPosition{.is_first = is_first, .next = &layer}) +
                    repeat(run->count - 2, schedule_of(layer, LayerPosition{.next = &layer}));
      schedule += schedule_of(layer, LayerPosition{.is_first = is_first && run->count == 1, .next = beyond});
    }
    return schedule;
  }

  std::ptrdiff_t frozen_runs_ = 0;  ///< at the start
  std::deque<Run> runs_;            // a layer refers to its run's numbers, which must not move
};

}  // namespace fp8lab::closed_form

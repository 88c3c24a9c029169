#include "harness/predict/predict_layer.h"

#include <utility>

#include "harness/predict/predict_parts.h"

namespace fp8lab::closed_form {
namespace {

using Branch = std::vector<Node>;

/// True if backward needs the matrix that node `k - 1` passes to node `k`.
bool is_kept(const Branch& branch, std::size_t k) { return branch[k].keeps_input || branch[k - 1].keeps_output; }

Schedule forward_of(const Branch& branch) {
  Schedule schedule;
  for (std::size_t k = 0; k < branch.size(); ++k) {
    schedule += branch[k].forward;
    if (k > 0 && !is_kept(branch, k)) schedule += release(branch[k - 1].out);
  }
  return schedule;
}

Schedule recorded_of(const Branch& branch, bool first_of_run) {
  Schedule schedule;
  for (std::size_t k = 0; k < branch.size(); ++k) {
    schedule += first_of_run ? branch[k].recorded : branch[k].recorded_again;
    if (k > 0 && !branch[k - 1].keeps_result) schedule += release(branch[k - 1].out);
  }
  return schedule;
}

/// From the gradient of the branch's output to the gradient of its input. A matrix that two nodes share is freed with
/// the last node that saved it.
Schedule backward_of(const Branch& branch, bool beside_residual, bool recomputed) {
  Schedule schedule;
  for (std::size_t k = branch.size(); k-- > 0;) {
    const Node& node = branch[k];
    const bool is_last = k + 1 == branch.size();
    // Shells that were never emptied free the copies of the first forward when they get the recomputed ones.
    if (recomputed) schedule += release(node.unemptied);
    schedule += is_last && beside_residual ? node.backward_beside_residual : node.backward;
    schedule += release(node.saved - node.retained);
    if (node.keeps_output && !is_last) schedule += release(node.out);
    if (k > 0 && node.keeps_input && !branch[k - 1].keeps_output) schedule += release(branch[k - 1].out);
  }
  return schedule;
}

Schedule made_before(const ParameterNumbers& parameter) {
  return allocate(parameter.biases_before, Owner::kParameters) + allocate(parameter.state_before, Owner::kScales);
}

}  // namespace

LayersOfRun make_layers(const CellNumbers& cell, std::string_view name) {
  const auto trained = [&](const CellNumbers& in) { return make_layer(in.frozen ? in.without_backward() : in, name); };
  return {.built = make_layer(cell, name),
          .first_validation = make_layer(cell.in_validation(true), name),
          .later_validation = make_layer(cell.in_validation(false), name),
          .first = trained(cell),
          .later_steps = trained(cell.in_later_steps()),
          .later_micro_batches = trained(cell.in_later_micro_batches())};
}

LayerAccount::LayerAccount(const CellNumbers& cell, const LayersOfRun& layers)
    : cell_(cell), layers_(layers), stream_(cell.plain(cell.shape.hidden)) {
  const Layer& layer = layers.built;
  Bytes state = 0, biases = 0;
  for (const Branch& branch : layer.branches) {
    for (std::size_t k = 0; k < branch.size(); ++k) {
      const Node& node = branch[k];
      state += node.recipe_state;
      biases += node.router_biases;
      router_counts += node.router_biases;
      recipe_state += node.resized;
      for (const ParameterNumbers& parameter : node.parameters) {
        parameters.push_back(parameter);
        parameters.back().frozen = cell.frozen;
        parameters.back().state_before += std::exchange(state, 0);
        parameters.back().biases_before += std::exchange(biases, 0);
      }
      forward_amaxes += node.forward_amaxes;
      backward_amaxes += node.backward_amaxes;
      forward_ring += node.forward_ring;
      backward_ring += node.backward_ring;
      forward_to_experts += node.forward_to_experts;
      backward_to_experts += node.backward_to_experts;
      forward_counts += node.forward_counts;
      stash += node.stash;
      kept_results += node.kept;
      cached += node.cached;
      retained += node.retained;
      unemptied += node.unemptied;
      saved += node.saved + (k > 0 && is_kept(branch, k) ? branch[k - 1].out : 0);
    }
  }
  if (layer.residual) saved += stream_;  // between the branches
  forwards = cell.shape.checkpoint ? 2 : 1;
  groups = trained_groups = cell.shape.expert_ranks > 1 ? 2 : 1;
  keeps_input = cell.shape.checkpoint || layer.branches.front().front().keeps_input;
  for (const ParameterNumbers& parameter : parameters) {
    stops = stops || parameter.stops;
    fp8_weights += parameter.to_be_fp8;
    refused_weights += parameter.to_be_fp8 && !parameter.eight_bits;
    kept += parameter.kept + parameter.biases_before;
    gradients += parameter.shard;
    add_gradient(parameter, reduced_gradients);
    recipe_state += parameter.state_before;
    forward_gather += parameter.forward;
    backward_gather += parameter.backward;
    transposes_ += parameter.transpose;
    early_transposes_ += parameter.transposes_early ? parameter.transpose : 0;
  }
  stops = stops || (cell.shape.checkpoint && stash > 0 && !cell.decisions.stash_inner_scales);
  left_transposes = cell.decisions.clear_gathered_transposes ? 0 : transposes_;
  transposes_stay = cell.in_later_steps().phase.finds_transposes;
  held = (cell.shape.checkpoint ? stash + unemptied + kept_results : saved) +
         (cell.decisions.validate_usage_by_pass ? early_transposes_ : transposes_);
  if (!cell.sharding.reshards) held += forward_gather.unsharded_parameters;
  if (cell.frozen) drop_backward();
  stops = stops || may_lack_blocks(cell);
}

void LayerAccount::drop_backward() {
  gradients = kept_results = stash = retained = unemptied = saved = held = left_transposes = 0;
  backward_gather = {};
  reduced_gradients = {};
  backward_ring = backward_to_experts = {};
  forwards = 1;
  trained_groups = 0;
  stops = false;  // what backward needs is missing
  cached = 0;     // copies have one orientation
  for (const Branch& branch : layers_.first.branches)
    for (const Node& node : branch) cached += node.cached;
  keeps_input = transposes_stay = false;
}

Schedule LayerAccount::made() const {
  Schedule schedule;
  for (const ParameterNumbers& parameter : parameters)
    schedule += made_before(parameter) + owned_by(Owner::kParameters, parameter.initialized);
  return schedule;
}

Schedule LayerAccount::declared() const {
  Schedule schedule;
  for (const ParameterNumbers& parameter : parameters)
    schedule += made_before(parameter) + owned_by(Owner::kParameters, parameter.made_unsharded);
  return schedule;
}

Schedule LayerAccount::sharded() const {
  Schedule schedule;
  for (const ParameterNumbers& parameter : parameters) schedule += owned_by(Owner::kParameters, parameter.initialized);
  return schedule;
}

/// The gather of a layer's parameters. With gather_ahead the layer before has allocated them, except for the first
/// layer, and this layer allocates the next one's. `dropped` bytes are freed when the gather has ended. `finds`: the
/// transposes are there already.
Schedule LayerAccount::gathered(Gather LayerAccount::* of_pass, LayerPosition position, Bytes dropped,
                                bool finds) const {
  Gather own = this->*of_pass;
  if (finds) own.transposed = {};
  const bool begun = cell_.sharding.ahead && !position.is_first;
  const bool begins_next = cell_.sharding.ahead && !position.is_last();
  return (begun ? Schedule{} : own.begin()) + own.finish(dropped) +
         (begins_next ? (position.next->*of_pass).begin() : Schedule{});
}

Schedule LayerAccount::forward(MicroBatch at, LayerPosition position) const {
  const Layer& layer = layers_.of(at);
  if (cell_.frozen) return without_backward(layer, at.first_of_run, false, position);
  const Schedule unsharded_released =
      release(cell_.sharding.reshards ? forward_gather.unsharded_parameters : 0, Owner::kGathered);
  const bool finds = transposes_stay && !at.first_of_run;
  const Bytes dropped = at.first_of_run || finds ? 0 : left_transposes;
  return gathered(&LayerAccount::forward_gather, position, dropped, finds) +
         (cell_.shape.checkpoint ? first_forward(layer, at.first_of_run, false) : full_forward(layer)) +
         unsharded_released;
}

Schedule LayerAccount::validation(bool first, LayerPosition position) const {
  return without_backward(first ? layers_.first_validation : layers_.later_validation, first, true, position);
}

/// What is gathered is freed, with all copies of it.
Schedule LayerAccount::without_backward(const Layer& layer, bool first_of_run, bool evaluates,
                                        LayerPosition position) const {
  const Schedule forward = first_forward(layer, first_of_run, evaluates);
  if (!cell_.sharding.sharded) return forward;
  return gathered(&LayerAccount::forward_gather, position, 0, false) + forward +
         release(forward_gather.unsharded_parameters + early_transposes_, Owner::kGathered);
}

Schedule LayerAccount::backward(MicroBatch at, LayerPosition position) const {
  // The first layer of a language model has an embedding before it, and so is like any other. So is the first layer
  // behind frozen ones, except that only a sharded root reads the gradient of its input.
  const bool is_first = position.is_last() && cell_.shape.vocabulary == 0;
  const bool behind_frozen = position.is_last() && cell_.behind_frozen;
  const bool ends = is_first || (behind_frozen && !cell_.sharding.sharded);
  const bool holds_input = is_first && !behind_frozen;
  const Layer& layer = layers_.of(at);
  if (!cell_.sharding.sharded) return backward_of_nodes(layer, holds_input, !ends) + release(ends ? stream_ : 0);
  // The unsharded parameters are freed before the gradients are reduce-scattered into shards. Even the model's first
  // layer makes a gradient of its input, because its parameter group's PostBackwardNode precedes that input.
  const Bytes unsharded_parameters =
      cell_.sharding.reshards ? backward_gather.unsharded_parameters : forward_gather.unsharded_parameters;
  return gathered(&LayerAccount::backward_gather, position, 0, false) + backward_of_nodes(layer, holds_input, true) +
         release(unsharded_parameters, Owner::kGathered) + cell_.reduction(reduced_gradients) +
         release(at.first_of_step ? 0 : gradients, Owner::kGradients) + release(ends ? stream_ : 0);
}

/// Adds a branch's output, after dropout if the cell has it and trains, to the residual stream.
/// `keeps_output`: that output is kept.
Schedule LayerAccount::merged(bool evaluates, bool keeps_output) const {
  const Bytes masked = cell_.shape.dropout && !evaluates ? stream_ : 0;
  return allocate(masked) + allocate(stream_) + release(masked + (keeps_output ? 0 : stream_));
}

Schedule LayerAccount::full_forward(const Layer& layer) const {
  Schedule schedule;
  for (const Branch& branch : layer.branches)
    schedule += forward_of(branch) + (layer.residual ? merged(false, false) : Schedule{});
  return schedule;
}

Schedule LayerAccount::first_forward(const Layer& layer, bool first_of_run, bool evaluates) const {
  Schedule schedule;
  for (const Branch& branch : layer.branches)
    schedule += recorded_of(branch, first_of_run) +
                (layer.residual ? merged(evaluates, branch.back().keeps_result) : Schedule{});
  return schedule + release(layer.residual ? stream_ : 0);
}

/// Ends with the gradient of the input alive. If that is not `wanted`, ends with the first branch's part of it alive.
Schedule LayerAccount::backward_of_nodes(const Layer& layer, bool holds_input, bool wanted) const {
  const auto through = [&](const Branch& branch, bool beside_residual) {
    return backward_of(branch, beside_residual, cell_.shape.checkpoint);
  };
  const bool dropout = cell_.shape.dropout;
  const Schedule recompute = cell_.shape.checkpoint ? full_forward(layer) + release(stream_) : Schedule{};
  const Schedule region_released =
      release(cell_.shape.checkpoint ? stash : 0) + release(!holds_input && keeps_input ? stream_ : 0);
  if (!layer.residual) return recompute + through(layer.branches[0], false) + region_released;

  // With dropout each branch has a gradient of its own. Otherwise the branch shares the gradient that stays alive at
  // the residual until the branch's part is added; if no gradient is wanted, the residual keeps none.
  const Schedule unmasked = allocate(dropout ? stream_ : 0);
  const Schedule merge = allocate(stream_) + release(2 * stream_);
  const Schedule second = unmasked + recompute + through(layer.branches[1], !dropout) + release(stream_) + merge;
  const Schedule first = unmasked + release(dropout && !wanted ? stream_ : 0) +
                         through(layer.branches[0], !dropout && wanted) + region_released +
                         (wanted ? merge : Schedule{});
  return second + first;
}

LayersAccount::LayersAccount(const CellConfig& config, Arm arm) {
  const TrainingConfig& training = config.training;
  const std::int64_t every = training.checkpoint == Recompute::kNone ? 1 : training.checkpoint_every;
  const auto is_plain = [&](std::int64_t layer) {
    return layer < training.first_layers_bf16 || layer >= config.model.layers - training.last_layers_bf16;
  };
  const std::int64_t frozen = training.frozen_layers;
  const auto is_passed_over = [&](std::int64_t layer) { return (layer + 1) % every != 0; };
  for (std::int64_t layer = 0, begin = 0; layer < config.model.layers; begin = layer) {
    while (layer < config.model.layers && is_plain(layer) == is_plain(begin) &&
           is_passed_over(layer) == is_passed_over(begin) && (layer < frozen) == (begin < frozen) &&
           (layer < config.model.dense_layers) == (begin < config.model.dense_layers))
      ++layer;
    CellConfig own = config;
    own.model = model_of_layer(config.model, begin);
    if (!routes_tokens(own.model)) own.expert_parallel = 1;
    if (is_plain(begin)) own.training.recipe = "bf16";
    if (is_passed_over(begin) || begin < frozen) own.training.checkpoint = Recompute::kNone;
    own.training.frozen_layers = begin < frozen ? 1 : 0;
    runs_.emplace_back(layer - begin, own, arm);
    runs_.back().cell.behind_frozen = frozen > 0 && begin == frozen;
    frozen_runs_ += begin < frozen ? 1 : 0;
  }
}

std::int64_t LayersAccount::count() const {
  std::int64_t layers = 0;
  for (const Run& run : runs_) layers += run.count;
  return layers;
}

}  // namespace fp8lab::closed_form

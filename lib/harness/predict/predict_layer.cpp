#include "harness/predict/predict_layer.h"

#include <utility>

namespace fp8lab::closed_form {
namespace {

using Branch = std::vector<Node>;

/// True if what node `k - 1` hands to node `k` is needed in backward.
bool is_kept(const Branch& branch, std::size_t k) { return branch[k].keeps_input || branch[k - 1].keeps_output; }

Schedule forward_of(const Branch& branch) {
  Schedule schedule;
  for (std::size_t k = 0; k < branch.size(); ++k) {
    schedule += branch[k].forward;
    if (k > 0 && !is_kept(branch, k)) schedule += release(branch[k - 1].out);
  }
  return schedule;
}

Schedule recorded_of(const Branch& branch, bool in_first_step) {
  Schedule schedule;
  for (std::size_t k = 0; k < branch.size(); ++k)
    schedule +=
        (in_first_step ? branch[k].recorded : branch[k].recorded_again) + release(k > 0 ? branch[k - 1].out : 0);
  return schedule;
}

/// From the gradient of the branch's output to that of its input. A shared matrix goes with the last node that saved
/// it.
Schedule backward_of(const Branch& branch, bool beside_residual, bool recomputed) {
  Schedule schedule;
  for (std::size_t k = branch.size(); k-- > 0;) {
    const Node& node = branch[k];
    const bool is_last = k + 1 == branch.size();
    // Shells that were never emptied swap the first forward's copies for the recomputed ones.
    if (recomputed) schedule += release(node.unemptied);
    schedule += is_last && beside_residual ? node.backward_beside_residual : node.backward;
    schedule += release(node.saved - node.retained);
    if (node.keeps_output && !is_last) schedule += release(node.out);
    if (k > 0 && node.keeps_input && !branch[k - 1].keeps_output) schedule += release(branch[k - 1].out);
  }
  return schedule;
}

}  // namespace

LayerAccount::LayerAccount(const Scenario& scenario, const Layer& layer)
    : scenario_(scenario), layer_(layer), stream_(scenario.plain(scenario.hidden)) {
  Bytes state = 0;
  for (const Branch& branch : layer.branches) {
    for (std::size_t k = 0; k < branch.size(); ++k) {
      const Node& node = branch[k];
      state += node.recipe_state;
      for (const ParameterNumbers& parameter : node.parameters) {
        parameters.push_back(parameter);
        parameters.back().state_before += std::exchange(state, 0);
      }
      forward_amaxes += node.forward_amaxes;
      backward_amaxes += node.backward_amaxes;
      stash += node.stash;
      kept_stash += node.kept_stash;
      retained += node.retained;
      unemptied += node.unemptied;
      saved += node.saved + (k > 0 && is_kept(branch, k) ? branch[k - 1].out : 0);
    }
  }
  if (layer.residual) saved += stream_;  // between the branches
  keeps_input = scenario.checkpoint || layer.branches.front().front().keeps_input;
  for (const ParameterNumbers& parameter : parameters) {
    stops = stops || parameter.stops;
    kept += parameter.kept;
    gradients += parameter.shard;
    unsharded_gradients += parameter.unsharded;
    recipe_state += parameter.state_before;
    forward_gather += parameter.forward;
    backward_gather += parameter.backward;
    transposes_ += parameter.transpose;
  }
  early_transposes_ = scenario.decisions.transposes_in_backward ? 0 : transposes_;
  held = scenario.checkpoint ? stash + unemptied : saved;
  if (!scenario.sharding.reshards) held += forward_gather.unsharded_parameters + early_transposes_;
}

Schedule LayerAccount::made() const {
  Schedule schedule;
  for (const ParameterNumbers& parameter : parameters)
    schedule += allocate(parameter.state_before) + parameter.initialized;
  return schedule;
}

Schedule LayerAccount::declared() const {
  Schedule schedule;
  for (const ParameterNumbers& parameter : parameters)
    schedule += allocate(parameter.state_before) + parameter.made_unsharded;
  return schedule;
}

Schedule LayerAccount::sharded() const {
  Schedule schedule;
  for (const ParameterNumbers& parameter : parameters) schedule += parameter.initialized;
  return schedule;
}

/// Until a layer's unsharded parameters are there. Gathered ahead, they and what they were decoded from came to be in
/// the position before, unless this is the first; and the next layer's come to be.
Schedule LayerAccount::gathered(const Gather& own, LayerPosition position) const {
  if (!scenario_.sharding.ahead) return own.schedule();
  return (position.is_first ? own.schedule() : release(own.decoded)) +
         allocate(position.is_last ? 0 : own.unsharded_parameters + own.decoded);
}

Schedule LayerAccount::forward(bool in_first_step, LayerPosition position) const {
  const Schedule unsharded_released =
      release(scenario_.sharding.reshards ? forward_gather.unsharded_parameters + early_transposes_ : 0);
  return gathered(forward_gather, position) + (scenario_.checkpoint ? first_forward(in_first_step) : full_forward()) +
         unsharded_released;
}

Schedule LayerAccount::backward(LayerPosition position) const {
  const bool is_first = position.is_last;
  if (!scenario_.sharding.sharded) return backward_of_nodes(is_first, !is_first) + release(is_first ? stream_ : 0);
  // The unsharded parameters go before gradients get their shards. Even the first layer hands a gradient to who waits
  // before it.
  const Bytes unsharded_parameters =
      scenario_.sharding.reshards ? backward_gather.unsharded_parameters : forward_gather.unsharded_parameters;
  return gathered(backward_gather, position) + backward_of_nodes(is_first, true) +
         release(unsharded_parameters + transposes_) + allocate(gradients) + release(unsharded_gradients) +
         release(is_first ? stream_ : 0);
}

/// Adds a branch's output, after dropout where there is any, to the stream.
Schedule LayerAccount::merged() const {
  const Bytes masked = scenario_.dropout ? stream_ : 0;
  return allocate(masked) + allocate(stream_) + release(masked + stream_);
}

Schedule LayerAccount::full_forward() const {
  Schedule schedule;
  for (const Branch& branch : layer_.branches)
    schedule += forward_of(branch) + (layer_.residual ? merged() : Schedule{});
  return schedule;
}

Schedule LayerAccount::first_forward(bool in_first_step) const {
  Schedule schedule;
  for (const Branch& branch : layer_.branches)
    schedule += recorded_of(branch, in_first_step) + (layer_.residual ? merged() : Schedule{});
  return schedule + release(layer_.residual ? stream_ : 0);
}

/// To the gradient of the input, or, where nobody wants it, to what one branch has made of it.
Schedule LayerAccount::backward_of_nodes(bool is_first, bool wanted) const {
  const auto through = [&](const Branch& branch, bool beside_residual) {
    return backward_of(branch, beside_residual, scenario_.checkpoint);
  };
  const bool dropout = scenario_.dropout;
  const Schedule recompute = scenario_.checkpoint ? full_forward() + release(stream_) : Schedule{};
  const Schedule region_released =
      release(scenario_.checkpoint ? stash - kept_stash : 0) + release(!is_first && keeps_input ? stream_ : 0);
  if (!layer_.residual) return recompute + through(layer_.branches[0], false) + region_released;

  // Behind dropout a branch has a gradient of its own. Otherwise it shares the one that waits at the residual for the
  // branch's part; where no gradient is wanted nothing waits.
  const Schedule unmasked = allocate(dropout ? stream_ : 0);
  const Schedule merge = allocate(stream_) + release(2 * stream_);
  const Schedule second = unmasked + recompute + through(layer_.branches[1], !dropout) + release(stream_) + merge;
  const Schedule first = unmasked + release(dropout && !wanted ? stream_ : 0) +
                         through(layer_.branches[0], !dropout && wanted) + region_released +
                         (wanted ? merge : Schedule{});
  return second + first;
}

}  // namespace fp8lab::closed_form

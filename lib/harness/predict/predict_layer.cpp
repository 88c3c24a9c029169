#include "harness/predict/predict_layer.h"

#include <utility>

namespace fp8lab::closed_form {
namespace {

using Branch = std::vector<Node>;

/// True if what node `k - 1` hands to node `k` is needed in backward.
bool is_kept(const Branch& branch, std::size_t k) { return branch[k].keeps_input || branch[k - 1].keeps_output; }

Course forward_of(const Branch& branch) {
  Course course;
  for (std::size_t k = 0; k < branch.size(); ++k) {
    course += branch[k].forward;
    if (k > 0 && !is_kept(branch, k)) course += give(branch[k - 1].out);
  }
  return course;
}

Course recorded_of(const Branch& branch, bool in_first_step) {
  Course course;
  for (std::size_t k = 0; k < branch.size(); ++k)
    course += (in_first_step ? branch[k].recorded : branch[k].recorded_again) + give(k > 0 ? branch[k - 1].out : 0);
  return course;
}

/// From the gradient of the branch's output to that of its input. A shared matrix goes with the last node that saved
/// it.
Course backward_of(const Branch& branch, bool beside_residual, bool recomputed) {
  Course course;
  for (std::size_t k = branch.size(); k-- > 0;) {
    const Node& node = branch[k];
    const bool is_last = k + 1 == branch.size();
    // Shells that were never emptied swap the first forward's copies for the recomputed ones.
    if (recomputed) course += give(node.unemptied);
    course += is_last && beside_residual ? node.backward_beside_residual : node.backward;
    course += give(node.saved - node.retained);
    if (node.keeps_output && !is_last) course += give(node.out);
    if (k > 0 && node.keeps_input && !branch[k - 1].keeps_output) course += give(branch[k - 1].out);
  }
  return course;
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
    whole_gradients += parameter.whole;
    recipe_state += parameter.state_before;
    forward_gather += parameter.forward;
    backward_gather += parameter.backward;
    transposes_ += parameter.transpose;
  }
  early_transposes_ = scenario.decisions.transposes_in_backward ? 0 : transposes_;
  held = scenario.checkpoint ? stash + unemptied : saved;
  if (!scenario.sharding.reshards) held += forward_gather.wholes + early_transposes_;
}

Course LayerAccount::made() const {
  Course course;
  for (const ParameterNumbers& parameter : parameters) course += take(parameter.state_before) + parameter.initialized;
  return course;
}

Course LayerAccount::declared() const {
  Course course;
  for (const ParameterNumbers& parameter : parameters) course += take(parameter.state_before) + parameter.made_whole;
  return course;
}

Course LayerAccount::sharded() const {
  Course course;
  for (const ParameterNumbers& parameter : parameters) course += parameter.initialized;
  return course;
}

/// Until a layer's wholes are there. Gathered ahead, they and what they were decoded from came to be in the turn
/// before, unless this is the first; and the next layer's come to be.
Course LayerAccount::gathered(const Gather& own, Turn turn) const {
  if (!scenario_.sharding.ahead) return own.course();
  return (turn.is_first ? own.course() : give(own.decoded)) + take(turn.is_last ? 0 : own.wholes + own.decoded);
}

Course LayerAccount::forward(bool in_first_step, Turn turn) const {
  const Course wholes_go = give(scenario_.sharding.reshards ? forward_gather.wholes + early_transposes_ : 0);
  return gathered(forward_gather, turn) + (scenario_.checkpoint ? first_forward(in_first_step) : full_forward()) +
         wholes_go;
}

Course LayerAccount::backward(Turn turn) const {
  const bool is_first = turn.is_last;
  if (!scenario_.sharding.sharded) return backward_of_nodes(is_first, !is_first) + give(is_first ? stream_ : 0);
  // The wholes go before gradients get their shards. Even the first layer hands a gradient to who waits before it.
  const Bytes wholes = scenario_.sharding.reshards ? backward_gather.wholes : forward_gather.wholes;
  return gathered(backward_gather, turn) + backward_of_nodes(is_first, true) + give(wholes + transposes_) +
         take(gradients) + give(whole_gradients) + give(is_first ? stream_ : 0);
}

/// Adds a branch's output, after dropout where there is any, to the stream.
Course LayerAccount::merged() const {
  const Bytes masked = scenario_.dropout ? stream_ : 0;
  return take(masked) + take(stream_) + give(masked + stream_);
}

Course LayerAccount::full_forward() const {
  Course course;
  for (const Branch& branch : layer_.branches) course += forward_of(branch) + (layer_.residual ? merged() : Course{});
  return course;
}

Course LayerAccount::first_forward(bool in_first_step) const {
  Course course;
  for (const Branch& branch : layer_.branches)
    course += recorded_of(branch, in_first_step) + (layer_.residual ? merged() : Course{});
  return course + give(layer_.residual ? stream_ : 0);
}

/// To the gradient of the input, or, where nobody wants it, to what one branch has made of it.
Course LayerAccount::backward_of_nodes(bool is_first, bool wanted) const {
  const auto through = [&](const Branch& branch, bool beside_residual) {
    return backward_of(branch, beside_residual, scenario_.checkpoint);
  };
  const bool dropout = scenario_.dropout;
  const Course recompute = scenario_.checkpoint ? full_forward() + give(stream_) : Course{};
  const Course region_goes =
      give(scenario_.checkpoint ? stash - kept_stash : 0) + give(!is_first && keeps_input ? stream_ : 0);
  if (!layer_.residual) return recompute + through(layer_.branches[0], false) + region_goes;

  // Behind dropout a branch has a gradient of its own. Otherwise it shares the one that waits at the residual for the
  // branch's part; where no gradient is wanted nothing waits.
  const Course unmasked = take(dropout ? stream_ : 0);
  const Course merge = take(stream_) + give(2 * stream_);
  const Course second = unmasked + recompute + through(layer_.branches[1], !dropout) + give(stream_) + merge;
  const Course first = unmasked + give(dropout && !wanted ? stream_ : 0) +
                       through(layer_.branches[0], !dropout && wanted) + region_goes + (wanted ? merge : Course{});
  return second + first;
}

}  // namespace fp8lab::closed_form

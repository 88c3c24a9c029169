#include "harness/predict.h"

#include <iterator>

#include "harness/predict_nodes.h"

// Live bytes of a training step, in formulas. The marks (end of forward, of backward, of the step) are sums of what must be
// alive then; the peak is the highest point of the step's course, composed from the courses of its nodes.
namespace fp8lab {
namespace {

using namespace closed_form;

constexpr Bytes kF32 = 4;
using Branch = std::vector<Node>;

/// True if what node `k - 1` hands to node `k` is needed in backward.
bool is_kept(const Branch& branch, std::size_t k) { return branch[k].keeps_input || branch[k - 1].keeps_output; }

Course forward(const Branch& branch) {
  Course course;
  for (std::size_t k = 0; k < branch.size(); ++k) {
    course += branch[k].forward;
    if (k > 0 && !is_kept(branch, k)) course += give(branch[k - 1].out);
  }
  return course;
}

Course recorded(const Branch& branch) {
  Course course;
  for (std::size_t k = 0; k < branch.size(); ++k) course += branch[k].recorded + give(k > 0 ? branch[k - 1].out : 0);
  return course;
}

/// From the gradient of the branch's output to that of its input. A shared matrix goes with the last node that saved it.
Course backward(const Branch& branch, bool beside_residual, bool recomputed) {
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

/// Sums over a layer, and its courses from its input x alive.
class LayerAccount {
 public:
  LayerAccount(const Scenario& scenario, const Layer& layer)
      : scenario_(scenario), layer_(layer), stream_(scenario.plain(scenario.hidden)) {
    for (const Branch& branch : layer.branches) {
      for (std::size_t k = 0; k < branch.size(); ++k) {
        const Node& node = branch[k];
        parameters += node.parameters;
        recipe_state += node.recipe_state;
        stash += node.stash;
        retained += node.retained;
        unemptied += node.unemptied;
        saved += node.saved + (k > 0 && is_kept(branch, k) ? branch[k - 1].out : 0);
      }
    }
    if (layer.residual) saved += stream_;  // between the branches
    keeps_input = scenario.checkpoint || layer.branches.front().front().keeps_input;
    held = scenario.checkpoint ? stash + unemptied : saved;
  }

  /// To the layer's output and what backward needs of it alive.
  Course forward() const { return scenario_.checkpoint ? first_forward() : full_forward(); }

  /// From the gradient of the output to that of the input. The first layer's input gets none, and stays.
  Course backward(bool is_first) const {
    const Course recompute = scenario_.checkpoint ? full_forward() + give(stream_) : Course{};
    const Course x_goes = give(stash_at_end()) + give(!is_first && keeps_input ? stream_ : 0);
    const Course merge = take(stream_) + give(2 * stream_);
    if (!layer_.residual) return recompute + through(layer_.branches[0], false) + x_goes + give(is_first ? stream_ : 0);
    const Course unmasked = scenario_.dropout ? take(stream_) : Course{};
    return unmasked + recompute + through(layer_.branches[1], !scenario_.dropout) + give(stream_) + merge + unmasked +
           give(is_first && scenario_.dropout ? stream_ : 0) +
           through(layer_.branches[0], !scenario_.dropout && !is_first) + x_goes + (is_first ? give(stream_) : merge);
  }

  Bytes parameters = 0, recipe_state = 0, stash = 0, retained = 0, unemptied = 0;
  Bytes saved = 0;           ///< from forward to backward, without the layer's input
  Bytes held = 0;            ///< the same, or what a checkpointed layer holds instead
  bool keeps_input = false;  ///< until its backward

 private:
  Bytes stash_at_end() const { return scenario_.checkpoint ? stash : 0; }
  Course through(const Branch& branch, bool beside_residual) const {
    return fp8lab::backward(branch, beside_residual, scenario_.checkpoint);
  }
  /// Adds a branch's output, after dropout where there is any, to the stream.
  Course merged() const {
    const Bytes masked = scenario_.dropout ? stream_ : 0;
    return take(masked) + take(stream_) + give(masked + stream_);
  }
  Course full_forward() const {
    Course course;
    for (const Branch& branch : layer_.branches)
      course += fp8lab::forward(branch) + (layer_.residual ? merged() : Course{});
    return course;
  }
  Course first_forward() const {
    Course course;
    for (const Branch& branch : layer_.branches) course += recorded(branch) + (layer_.residual ? merged() : Course{});
    return course + give(layer_.residual ? stream_ : 0);
  }

  const Scenario& scenario_;
  const Layer& layer_;
  Bytes stream_;
};

/// What is alive for reasons other than the graph.
struct Standing {
  Bytes parameters, gradients, moments, recipe_state;
  Bytes inputs;   ///< x, and the target where the loss has one
  Bytes results;  ///< output, loss, and what the graph behind them retains
};

}  // namespace

std::map<std::string, double> predict(const CellConfig& cell, Arm arm) {
  if (cell.ranks != 1) return {};
  const Scenario scenario(cell, arm);
  const Layer layer = make_layer(scenario, cell.model.layer);
  const LayerAccount each(scenario, layer);
  const std::int64_t layers = cell.model.layers;
  const TrainingConfig& training = cell.training;

  const Bytes stream = scenario.plain(scenario.hidden);
  const Bytes parameters = layers * each.parameters;
  const Bytes moments = training.optimizer == "adam" ? 2 * kF32 * parameters / scenario.element : 0;
  const Bytes standing = parameters + layers * each.recipe_state;
  const Bytes inputs = stream * (training.loss == "mse" ? 2 : 1);
  const Bytes retained = training.keep_loss ? layers * each.retained : 0;
  const Bytes results = training.keep_loss ? stream + kF32 + retained : 0;

  const Bytes moments_before = training.steps > 1 ? moments : 0;
  const Bytes saved = layers * each.held + (each.keeps_input ? (layers - 1) * stream : 0);
  const Bytes end_of_forward = standing + moments_before + inputs + saved + stream + kF32;
  const Bytes end_of_backward = standing + moments_before + inputs + parameters + results;
  const Bytes end_of_step = standing + moments + results;

  const Course next_layer = each.forward() + give(each.keeps_input ? 0 : stream);
  const Course forward = each.forward() + repeat(layers - 1, next_layer);
  const Course backward =
      take(kF32) + take(stream) + give(kF32) + repeat(layers - 1, each.backward(false)) + each.backward(true);
  const Course update = give(stream + kF32 + layers * each.retained - results);
  const auto step = [&](bool is_first) {
    const Bytes old_output = is_first || !training.keep_loss ? 0 : stream;
    const Bytes old_rest = is_first ? 0 : results - old_output;
    return take(inputs) + forward + give(old_output) + take(kF32) + give(old_rest) + backward + update +
           take(is_first ? moments : 0) + give(parameters + inputs);
  };
  const Course run = take(standing) + step(true) + repeat(training.steps - 1, step(false));

  const auto bytes = [](Bytes count) { return static_cast<double>(count); };
  return {{"memory.peak_bytes", bytes(run.high)},
          {"memory.end_of_forward_bytes", bytes(end_of_forward)},
          {"memory.end_of_backward_bytes", bytes(end_of_backward)},
          {"memory.end_of_step_bytes", bytes(end_of_step)},
          {"memory.retained_bytes", bytes(retained)}};
}

}  // namespace fp8lab

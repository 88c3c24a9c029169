#include "harness/predict.h"

#include "core/check.h"
#include "harness/predict_nodes.h"
#include "harness/sharding_keys.h"

// Live bytes of a training step, in formulas. The marks (end of forward, of backward, of the step) are sums of what
// must be alive then; the peak is the highest point of the step's course, composed from the courses of its nodes.
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

/// From the gradient of the branch's output to that of its input. A shared matrix goes with the last node that saved
/// it.
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

  /// From the gradient of the output to that of the input. The first layer's input wants none, and stays.
  Course backward(bool is_first) const {
    const bool dropout = scenario_.dropout;
    const Course recompute = scenario_.checkpoint ? full_forward() + give(stream_) : Course{};
    const Course region_goes = give(scenario_.checkpoint ? stash : 0) + give(!is_first && keeps_input ? stream_ : 0);
    const Course unwanted = give(is_first ? stream_ : 0);
    if (!layer_.residual) return recompute + through(layer_.branches[0], false) + region_goes + unwanted;

    // Behind dropout a branch has a gradient of its own. Otherwise it shares the one that waits at the residual for
    // the branch's part; in front of the first layer nothing waits.
    const Course unmasked = take(dropout ? stream_ : 0);
    const Course merge = take(stream_) + give(2 * stream_);
    const Course second = unmasked + recompute + through(layer_.branches[1], !dropout) + give(stream_) + merge;
    const Course first = unmasked + give(dropout && is_first ? stream_ : 0) +
                         through(layer_.branches[0], !dropout && !is_first) + region_goes +
                         (is_first ? unwanted : merge);
    return second + first;
  }

  Bytes parameters = 0, recipe_state = 0, stash = 0, retained = 0, unemptied = 0;
  Bytes saved = 0;           ///< from forward to backward, without the layer's input
  Bytes held = 0;            ///< the same, or what a checkpointed layer holds instead
  bool keeps_input = false;  ///< until its backward

 private:
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

/// The account of a whole training run.
class RunAccount {
 public:
  RunAccount(const CellConfig& cell, const Scenario& scenario, const LayerAccount& layer)
      : layer_(layer),
        layers_(cell.model.layers),
        steps_(cell.training.steps),
        keep_loss_(cell.training.keep_loss),
        stream_(scenario.plain(scenario.hidden)),
        parameters_(layers_ * layer.parameters),
        standing_(parameters_ + layers_ * layer.recipe_state),
        moments_(cell.training.optimizer == "adam" ? 2 * kF32 * (parameters_ / scenario.element) : 0),
        inputs_(cell.training.loss == "mse" ? 2 * stream_ : stream_) {}

  Bytes retained() const { return keep_loss_ ? layers_ * layer_.retained : 0; }
  Bytes end_of_forward() const {
    const Bytes inner_inputs = layer_.keeps_input ? (layers_ - 1) * stream_ : 0;
    return standing_ + moments_before_last_step() + inputs_ + inner_inputs + layers_ * layer_.held + stream_ + kF32;
  }
  Bytes end_of_backward() const {
    const Bytes gradients = parameters_;
    return standing_ + moments_before_last_step() + inputs_ + gradients + results();
  }
  Bytes end_of_step() const { return standing_ + moments_ + results(); }

  Course course() const { return take(standing_) + step(true) + repeat(steps_ - 1, step(false)); }

 private:
  /// Output, loss and what the graph behind them retains, from the end of backward until the next forward replaces
  /// them.
  Bytes results() const { return keep_loss_ ? stream_ + kF32 + retained() : 0; }
  Bytes moments_before_last_step() const { return steps_ > 1 ? moments_ : 0; }

  Course step(bool is_first) const {
    const Bytes old_output = keep_loss_ && !is_first ? stream_ : 0;
    const Bytes old_rest = is_first ? 0 : results() - old_output;
    const Course inner_layer = layer_.forward() + give(layer_.keeps_input ? 0 : stream_);
    const Course forward = layer_.forward() + repeat(layers_ - 1, inner_layer) + give(old_output);
    const Course loss = take(kF32) + give(old_rest);
    const Course loss_backward = take(kF32 + stream_) + give(kF32);
    const Course backward = repeat(layers_ - 1, layer_.backward(false)) + layer_.backward(true);
    const Course dropped = give(stream_ + kF32 + layers_ * layer_.retained - results());
    const Course update = take(is_first ? moments_ : 0) + give(parameters_ + inputs_);
    return take(inputs_) + forward + loss + loss_backward + backward + dropped + update;
  }

  const LayerAccount& layer_;
  std::int64_t layers_, steps_;
  bool keep_loss_;
  Bytes stream_;
  Bytes parameters_;
  Bytes standing_;  ///< parameters and recipe state
  Bytes moments_;   ///< of the optimizer, from its first step on
  Bytes inputs_;    ///< x, and the target where the loss has one
};

/// One rank that keeps its parameters in high precision and updates them with plain Adam.
bool has_closed_form(const CellConfig& cell, Arm arm) {
  const TrainingConfig& t = cell.training;
  const bool eight_bits = t.quantized_weights && t.recipe != "bf16" && arm != Arm::kBf16;
  const bool plain_adam = t.optimizer == "adam" && t.master_weights == "none" && t.moments == "f32" &&
                          t.clip_norm == 0.0 && !t.weight_average;
  return cell.ranks == 1 && !is_sharded(cell) && !eight_bits && (plain_adam || t.optimizer == "none");
}

}  // namespace

std::map<std::string, double> predict(const CellConfig& cell, Arm arm) {
  if (!has_closed_form(cell, arm)) return {};
  const Scenario scenario(cell, arm);
  const Layer layer = make_layer(scenario, cell.model.layer);
  const LayerAccount each(scenario, layer);
  const RunAccount run(cell, scenario, each);
  check(run.course().net == run.end_of_step(), "predict: the course of the run must end where the sums of the step do");
  const auto bytes = [](Bytes count) { return static_cast<double>(count); };
  return {{"memory.peak_bytes", bytes(run.course().high)},
          {"memory.end_of_forward_bytes", bytes(run.end_of_forward())},
          {"memory.end_of_backward_bytes", bytes(run.end_of_backward())},
          {"memory.end_of_step_bytes", bytes(run.end_of_step())},
          {"memory.retained_bytes", bytes(run.retained())}};
}

}  // namespace fp8lab

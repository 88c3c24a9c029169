#include "harness/predict/predict_run.h"

#include <algorithm>

#include "core/check.h"

// Figures at a point of time (end of forward, of backward, of the step) are sums of the bytes that must be alive then.
// Peaks are the highest points of the run's schedule, which is composed of the schedules of its layers.
namespace fp8lab::closed_form {
namespace {

constexpr Bytes kF32 = 4;

/// The number of live bytes while schedules are applied one after the other.
class Level {
 public:
  void pass(Schedule schedule) { bytes_ += schedule.net; }
  void pass(Schedule schedule, Bytes& highest) {
    highest = std::max(highest, bytes_ + schedule.high);
    bytes_ += schedule.net;
  }
  Bytes bytes() const { return bytes_; }

 private:
  Bytes bytes_ = 0;
};

}  // namespace

RunAccount::RunAccount(const CellConfig& config, const CellNumbers& cell, const LayerAccount& layer,
                       const OptimizerNumbers& optimizer)
    : cell_(cell),
      layer_(layer),
      optimizer_(optimizer),
      layers_(config.model.layers),
      steps_(config.training.steps),
      micro_batches_(config.training.micro_batches),
      validation_batches_(config.training.validation_batches),
      keep_loss_(config.training.keep_loss),
      stream_(cell.plain(cell.hidden)),
      kept_(layers_ * layer.kept),
      standing_(kept_ + layers_ * (layer.recipe_state + layer.cached) + optimizer.average),
      inputs_(config.training.loss == Loss::kMse ? 2 * stream_ : stream_) {}

/// The output, the loss and the bytes that their autograd graph retains. They live from the end of backward until the
/// next forward replaces them.
Bytes RunAccount::results() const { return keep_loss_ ? stream_ + kF32 + retained() : 0; }

/// Without what the last forward frees and without transposes that it leaves alive.
Bytes RunAccount::before_last_update() const { return standing_ + (steps_ > 1 ? optimizer_.state : 0) + inputs_; }

Bytes RunAccount::end_of_forward() const {
  const Bytes inner_inputs = layer_.keeps_input ? (layers_ - 1) * stream_ : 0;
  const bool first_of_run = steps_ == 1 && micro_batches_ == 1;
  const Bytes found_transposes = !first_of_run && layer_.transposes_stay ? left_transposes() : 0;
  const Bytes added_to = micro_batches_ > 1 ? layers_ * layer_.gradients : 0;
  return before_last_update() + found_transposes + added_to + inner_inputs + layers_ * layer_.held + stream_ + kF32;
}

Bytes RunAccount::end_of_backward() const {
  return before_last_update() + left_transposes() + layers_ * layer_.gradients + results();
}

Bytes RunAccount::end_of_step() const { return standing_ + optimizer_.state + left_transposes() + results(); }

RunAccount::Passes RunAccount::passes(MicroBatch at) const {
  const Bytes old_output = keep_loss_ && !at.first_of_run ? stream_ : 0;
  const Bytes old_rest = at.first_of_run ? 0 : results() - old_output;
  // A layer that does not keep its input frees it, except for the model's own input, which the training loop holds.
  const auto layer_forward = [&](LayerPosition position) {
    return layer_.forward(at, position) + release(position.is_first || layer_.keeps_input ? 0 : stream_);
  };
  const auto layer_backward = [&](LayerPosition position) { return layer_.backward(at, position); };
  const Schedule loss = allocate(kF32) + release(old_rest);
  const Schedule loss_backward = allocate(kF32 + stream_) + release(kF32);
  const Schedule dropped = release(stream_ + kF32 + layers_ * layer_.retained - results());
  return {.forward = in_order(layers_, layer_forward) + release(old_output) + loss,
          .backward = loss_backward + in_order(layers_, layer_backward) + dropped};
}

Schedule RunAccount::validation(bool first) const {
  const auto layer_forward = [&](LayerPosition position) {
    return layer_.validation(first) + release(position.is_first ? 0 : stream_);
  };
  return in_order(layers_, layer_forward) + allocate(kF32) + release(kF32 + stream_);
}

Schedule RunAccount::update(bool first_step) const {
  return (first_step ? optimizer_.first_step : optimizer_.later_step) + release(layers_ * layer_.gradients);
}

std::map<std::string, Bytes> RunAccount::figures() const {
  const Schedule made = cell_.sharding.sharded ? repeat(layers_, layer_.declared()) + repeat(layers_, layer_.sharded())
                                               : repeat(layers_, layer_.made());
  Bytes highest = 0, in_setup = 0, in_forward = 0, in_backward = 0, in_update = 0;
  Level level;
  level.pass(made + allocate(optimizer_.average), in_setup);
  for (std::int64_t batch = 0; batch < std::min<std::int64_t>(2, validation_batches_); ++batch) {
    level.pass(allocate(inputs_), highest);
    level.pass(validation(batch == 0), in_forward);
    level.pass(release(inputs_));
  }
  // Every step after the first is the same; in a step, every micro-batch after the first is.
  for (const bool first_step : {true, false}) {
    if (!first_step && steps_ == 1) break;
    for (const bool first_of_step : {true, false}) {
      if (!first_of_step && micro_batches_ == 1) break;
      const Passes now = passes({.first_of_run = first_step && first_of_step, .first_of_step = first_of_step});
      level.pass(release(first_of_step ? 0 : inputs_));
      level.pass(allocate(inputs_), highest);
      level.pass(now.forward, in_forward);
      level.pass(now.backward, in_backward);
    }
    level.pass(update(first_step), in_update);
    level.pass(release(inputs_));
  }
  check(level.bytes() == end_of_step(), "predict: the schedule of the run must end where the sums of the step do");
  return {{"memory.peak_bytes", std::max({highest, in_setup, in_forward, in_backward, in_update})},
          {"memory.setup_peak_bytes", in_setup},
          {"memory.forward_peak_bytes", in_forward},
          {"memory.optimizer_peak_bytes", in_update},
          {"memory.end_of_forward_bytes", end_of_forward()},
          {"memory.end_of_backward_bytes", end_of_backward()},
          {"memory.end_of_step_bytes", end_of_step()},
          {"memory.weight_bytes", kept_},
          {"memory.retained_bytes", retained() + left_transposes()}};
}

}  // namespace fp8lab::closed_form

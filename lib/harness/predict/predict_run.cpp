#include "harness/predict/predict_run.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

// Figures at a point of time (end of forward, of backward, of the step) are sums of the bytes that must be alive then.
// Peaks are the highest points of the run's schedule, which is composed of the schedules of its layers.
namespace fp8lab::closed_form {
RunAccount::RunAccount(const CellConfig& config, const CellNumbers& cell, const LayersAccount& layers,
                       const EndsAccount& ends, const OptimizerNumbers& optimizer)
    : cell_(cell),
      layers_(layers),
      ends_(ends),
      optimizer_(optimizer),
      buckets_(bucket_numbers(cell, layers, ends)),
      steps_(config.training.steps),
      micro_batches_(config.training.micro_batches),
      validation_batches_(config.training.validation_batches),
      validates_after_steps_(config.training.validate_every > 0),
      keep_loss_(config.training.keep_loss),
      language_model_(is_language_model(config)),
      stream_(cell.plain(cell.shape.hidden)),
      kept_(layers.sum(&LayerAccount::kept) + ends.kept),
      standing_(kept_ + layers.sum(&LayerAccount::recipe_state) + layers.sum(&LayerAccount::cached) +
                optimizer.average + buckets_.bytes),
      inputs_(language_model_                      ? ends.inputs
              : config.training.loss == Loss::kMse ? 2 * stream_
                                                   : stream_) {}

/// The output, the loss and the bytes that their autograd graph retains. They live from the end of backward until the
/// next forward replaces them.
Bytes RunAccount::results() const { return keep_loss_ ? ends_.output + kF32 + retained() : 0; }

/// Without what the last forward frees and without transposes that it leaves alive.
Bytes RunAccount::before_last_update() const { return standing_ + (steps_ > 1 ? optimizer_.state : 0) + inputs_; }

Bytes RunAccount::end_of_forward() const {
  // The training loop holds the input of the first layer, unless an embedding makes it.
  const bool first_is_input = layers_.first().keeps_input && !language_model_;
  const std::int64_t inner_inputs = layers_.sum(&LayerAccount::keeps_input) - (first_is_input ? 1 : 0);
  const Bytes added_to = micro_batches_ > 1 ? gradients() : 0;
  return before_last_update() + added_to + inner_inputs * stream_ + layers_.sum(&LayerAccount::held) + ends_.held +
         stream_ + kF32;
}

Bytes RunAccount::end_of_backward() const { return before_last_update() + left_transposes() + gradients() + results(); }

Bytes RunAccount::end_of_step() const { return standing_ + optimizer_.state + left_transposes() + results(); }

RunAccount::Passes RunAccount::passes(MicroBatch at) const {
  const Bytes old_output = keep_loss_ && !at.first_of_run ? ends_.output : 0;
  const Bytes old_rest = at.first_of_run ? 0 : results() - old_output;
  // A layer that does not keep its input frees it, except for the model's own input, which the training loop holds.
  const auto layer_forward = [&](const LayerAccount& layer, LayerPosition position) {
    return layer.forward(at, position) + release(holds_input(position) || layer.keeps_input ? 0 : stream_);
  };
  const auto layer_backward = [&](const LayerAccount& layer, LayerPosition position) {
    return layer.backward(at, position);
  };
  const Schedule dropped = release(ends_.output + kF32 + layers_.sum(&LayerAccount::retained) - results());
  return {.forward = ends_.enter(false) + layers_.forward(layer_forward) + ends_.leave() + ends_.dropped_before_loss() +
                     release(old_output) + ends_.loss() + release(old_rest),
          .backward = allocate(kF32) + ends_.backward(at) + layers_.backward(layer_backward) +
                      ends_.embedding_backward(at, cell_.sharding.sharded || layers_.all_frozen()) + dropped};
}

Schedule RunAccount::validation(bool first) const {
  const auto layer_forward = [&](const LayerAccount& layer, LayerPosition position) {
    return layer.validation(first, position) + release(holds_input(position) ? 0 : stream_);
  };
  return ends_.enter(true) + layers_.forward(layer_forward) + ends_.validation();
}

Schedule RunAccount::update(bool first_step) const {
  return owned_by(Owner::kOptimizer, first_step ? optimizer_.first_step : optimizer_.later_step) +
         release(gradients(), Owner::kGradients);
}

// Parameters are made in a first stage and sharded in a second one, each of which keeps its rows before the copy of the
// unsharded parameter is freed.
Bytes RunAccount::host_copies_peak() const {
  Bytes live = 0;
  layers_.visit([&](std::int64_t count, const LayerAccount& layer) {
    for (const ParameterNumbers& parameter : layer.parameters) live += count * parameter.host_made;
  });
  Bytes peak = live;
  layers_.visit([&](std::int64_t count, const LayerAccount& layer) {
    const Bytes before = live;
    for (const ParameterNumbers& parameter : layer.parameters) {
      live += parameter.host_kept;
      peak = std::max(peak, live);
      if (cell_.sharding.sharded) live -= parameter.host_made;
    }
    // Each of `count` equal layers changes what lives by as much, so the peak is in the first of them or the last.
    const Bytes change = live - before;
    live += (count - 1) * change;
    if (change > 0) peak = std::max(peak, live);
  });
  return peak;
}

RunFigures RunAccount::figures() const {
  const auto declared = [](const LayerAccount& layer) { return layer.declared(); };
  const auto sharded = [](const LayerAccount& layer) { return layer.sharded(); };
  const auto made_here = [](const LayerAccount& layer) { return layer.made(); };
  const Schedule made = cell_.sharding.sharded
                            ? ends_.declared() + layers_.each(declared) + layers_.each(sharded) + ends_.sharded()
                            : ends_.made() + layers_.each(made_here);
  Peak between, in_setup, in_forward, in_backward, in_update;
  Level level;
  level.pass(made + allocate(buckets_.bytes, Owner::kBuckets) + allocate(optimizer_.average, Owner::kOptimizer),
             in_setup);
  const auto validate = [&](bool first) {
    level.pass(allocate(inputs_), between);
    level.pass(validation(first), in_forward);
    level.pass(release(inputs_));
  };
  for (std::int64_t batch = 0; batch < std::min<std::int64_t>(2, validation_batches_); ++batch) validate(batch == 0);
  // Every step after the first is the same; in a step, every micro-batch after the first is.
  for (const bool first_step : {true, false}) {
    if (!first_step && steps_ == 1) break;
    for (const bool first_of_step : {true, false}) {
      if (!first_of_step && micro_batches_ == 1) break;
      const Passes now = passes({.first_of_run = first_step && first_of_step, .first_of_step = first_of_step});
      level.pass(release(first_of_step ? 0 : inputs_));
      level.pass(allocate(inputs_), between);
      level.pass(now.forward, in_forward);
      level.pass(now.backward, in_backward);
    }
    level.pass(update(first_step), in_update);
    level.pass(release(inputs_));
  }
  // All batches after the first are the same, and so is what is alive between steps.
  if (validates_after_steps_) validate(false);
  check(level.bytes() == end_of_step(), "predict: the schedule of the run must end with the sums of the step");
  const PhasePeak peak = highest_of({{"setup", in_setup},
                                     {"forward", between},
                                     {"forward", in_forward},
                                     {"backward", in_backward},
                                     {"optimizer", in_update}});
  return {.bytes = {{"memory.peak_bytes", peak.second.bytes},
                    {"memory.setup_peak_bytes", in_setup.bytes},
                    {"memory.forward_peak_bytes", in_forward.bytes},
                    {"memory.optimizer_peak_bytes", in_update.bytes},
                    {"memory.end_of_forward_bytes", end_of_forward()},
                    {"memory.end_of_backward_bytes", end_of_backward()},
                    {"memory.end_of_step_bytes", end_of_step()},
                    {"memory.weight_bytes", kept_},
                    {"memory.host_copies_peak_bytes", host_copies_peak()},
                    {"memory.retained_bytes", retained() + left_transposes()}},
          .peak = peak};
}

}  // namespace fp8lab::closed_form

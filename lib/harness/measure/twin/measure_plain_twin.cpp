#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "harness/cell/sharding_keys.h"
#include "harness/measure/arms.h"
#include "harness/measure/over_ranks.h"
#include "harness/measure/twin/comparison.h"
#include "harness/measure/twin/findings.h"
#include "harness/measure/twin/plain_twin.h"

namespace fp8lab {
namespace {

/// The sizes of unsharded parameters as [rows, elements of a row].
std::vector<Shape> shapes_of(TrainingRun& run) {
  std::vector<Shape> shapes;
  run.visit_parameters([&](const Parameter& parameter) { shapes.push_back(parameter.entire_shape()); });
  return shapes;
}

void write_all(TrainedModel& model, Device& device, const Lists& values, Tensor Parameter::* member) {
  const std::vector<Parameter*>& parameters = model.model().parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i]->*member) device.write(parameters[i]->*member, values[i]);
}

/// Puts the weights and biases of a step of the twin in place of the model's.
void write_step(TrainedModel& model, Device& device, const RecordedStep& twin) {
  write_all(model, device, twin.weights, &Parameter::value);
  model.write_router_biases(twin.router_biases);
}

/// Trains the twin: records it, and puts the cell's gradients in place of its own.
class TwinRecorder : public StepRecorder {
 public:
  TwinRecorder(std::int64_t steps, const std::vector<AllRanks>& cell) : StepRecorder(steps), cell_(cell) {}

  void begin_step(TrainedModel& model, Device& device, std::int64_t step) override {
    StepRecorder::begin_step(model, device, step);
    present().weights = model.weights();
    present().router_biases = model.router_biases();
  }
  void end_passes(TrainedModel& model, Device& device) override {
    StepRecorder::end_passes(model, device);
    write_all(model, device, cell_[steps().size() - 1].gradients.front(), &Parameter::grad);
  }

 private:
  const std::vector<AllRanks>& cell_;
};

/// Records the twin's passes in FP32, in every step from the twin's weights.
class ExactRecorder : public StepRecorder {
 public:
  ExactRecorder(std::int64_t steps, const std::vector<RecordedStep>& twin) : StepRecorder(steps), twin_(twin) {}

  void begin_step(TrainedModel& model, Device& device, std::int64_t step) override {
    StepRecorder::begin_step(model, device, step);
    write_step(model, device, twin_[static_cast<std::size_t>(step)]);
  }

 private:
  const std::vector<RecordedStep>& twin_;
};

/// Records what each micro-batch of a step adds to gradients, in every step from the twin's weights.
class PartRecorder : public StepWatch {
 public:
  explicit PartRecorder(const std::vector<RecordedStep>& twin) : twin_(twin) {}

  void begin_step(TrainedModel& model, Device& device, std::int64_t step) override {
    model_ = &model;
    sums_.emplace_back();
    write_step(model, device, twin_[static_cast<std::size_t>(step)]);
    is_first_ = true;
  }
  void saw_input(Device&, const Tensor&, std::int64_t) override {
    if (!is_first_) sums_.back().push_back(model_->gradients());
    is_first_ = false;
  }
  void end_passes(TrainedModel& model, Device&) override { sums_.back().push_back(model.gradients()); }

  /// The gradients after each micro-batch of each step.
  const std::vector<std::vector<Lists>>& sums() const { return sums_; }

 private:
  const std::vector<RecordedStep>& twin_;
  TrainedModel* model_ = nullptr;
  bool is_first_ = true;
  std::vector<std::vector<Lists>> sums_;
};

constexpr double kRoundingsOfSum = 3.0;

/// The square of what each element's parts, divided by `divisor`, are rounded by together; or the sum of their squares
/// if it is larger, because parts of other runs may round otherwise, and not cancel as these do. And the sum over
/// ranks, their mean, and its addition to the micro-batches before each round by up to `rounding` of some parts, which
/// need not cancel as all of them do.
Lists noise_of_parts(const std::vector<Lists>& rounded, const std::vector<Lists>& exact, double divisor,
                     double rounding) {
  Lists out;
  for (std::size_t i = 0; i < rounded.front().size(); ++i) {
    std::vector<float>& of_tensor = out.emplace_back(rounded.front()[i].size());
    for (std::size_t j = 0; j < of_tensor.size(); ++j) {
      double before = 0.0, squares = 0.0, sum_before = 0.0, of_additions = 0.0;
      for (std::size_t part = 0; part < rounded.size(); ++part) {
        const double error = (static_cast<double>(rounded[part][i][j]) - exact[part][i][j]) / divisor;
        squares += (error - before) * (error - before);
        before = error;
        const double sum = static_cast<double>(exact[part][i][j]) / divisor, term = rounding * (sum - sum_before);
        of_additions += kRoundingsOfSum * term * term;
        sum_before = sum;
      }
      of_tensor[j] = static_cast<float>(std::max(squares, before * before) + of_additions);
    }
  }
  return out;
}

CellConfig without_updates(CellConfig cell) {
  TrainingConfig& training = cell.training;
  training.optimizer = Optimizer::kNone;
  training.master_weights = Master::kNone;
  training.moments = Moments::kF32;
  training.clip_norm = 0.0;
  training.validation_batches = 0;
  return cell;
}

CellConfig in_f32(const CellConfig& twin) {
  CellConfig exact = without_updates(as_bf16(twin));
  exact.training.param_dtype = ParamDType::kF32;
  return exact;
}

/// By step, if the twin has parts. As in the cell, a part's loss is a mean over a rank's micro-batches, so that each
/// cast rounds the values that the cell's does.
std::vector<Lists> noise_by_step(const PlainTwin& twin, std::int64_t micro_batches, const Recipe& recipe,
                                 const std::vector<RecordedStep>& steps) {
  std::vector<Lists> out;
  if (!twin.parts) return out;
  CellConfig cell = without_updates(*twin.parts);
  cell.training.steps = twin.steps;
  PartRecorder rounded(steps), exact(steps);
  const double ranks = static_cast<double>(cell.training.micro_batches) / static_cast<double>(micro_batches);
  const double divisor = cell.training.loss == Loss::kSum ? 1.0 : ranks;
  const double rounding = cell.training.param_dtype == ParamDType::kF32 ? 0x1p-24 : 0x1p-9;
  TrainingRun(cell, Behaviors{}, recipe, {.watch = &rounded, .mean_over = micro_batches}).train();
  TrainingRun(in_f32(cell), Behaviors{}, make_recipe("bf16"), {.watch = &exact, .mean_over = micro_batches}).train();
  for (std::size_t step = 0; step < steps.size(); ++step)
    out.push_back(noise_of_parts(rounded.sums()[step], exact.sums()[step], divisor, rounding));
  return out;
}

/// Bit for bit, with the same ranks and micro-batches. Collective. Steps after one with a fault follow from it.
void compare_same_split(const PlainTwin& twin, const Recipe& recipe, const StepRecorder& recorder,
                        const std::vector<float>& losses, const std::vector<std::string>& names, ProcessGroup* world,
                        TwinFindings& out) {
  CellConfig cell = *twin.same_split;
  cell.training.steps = twin.steps;
  StepRecorder plain(twin.steps);
  TrainingRun run(cell, Behaviors{}, recipe, {.world = world, .watch = &plain});
  run.train();
  const int rank = world != nullptr ? world->rank() : 0;
  for (std::size_t step = 0; step < plain.steps().size() && out.faults.empty(); ++step) {
    const RecordedStep &seen = recorder.steps()[step], &expected = plain.steps()[step];
    for (std::size_t i = 0; i < seen.outputs.size(); ++i)
      out.expect_same(fmt::format("output, rank {}, micro-batch {}, step {}", rank, i, step), seen.outputs[i],
                      expected.outputs[i]);
    for (std::size_t i = 0; i < names.size(); ++i)
      out.expect_same(fmt::format("gradient {}, rank {}, step {}", names[i], rank, step), seen.gradients[i],
                      expected.gradients[i]);
    out.expect_same(fmt::format("loss, rank {}, step {}", rank, step), {losses[step]}, {run.losses()[step]});
  }
}

/// A validation drops nothing, so before the first step a model without dropout has the same loss, of the same batches.
/// The twin itself has dropout, and would hide that a validation drops.
void compare_undropped_validation(const CellConfig& plain, const Recipe& recipe,
                                  const std::vector<ValidationLoss>& seen, TwinFindings& out) {
  if (plain.model.dropout == 0.0 || seen.empty() || plain.training.validation_batches == 0) return;
  CellConfig undropped = plain;
  undropped.model.dropout = 0.0;
  undropped.training.steps = 1;
  TrainingRun run(undropped, Behaviors{}, recipe);
  run.train();
  constexpr double kMeanOfBatches = 1e-6;  // in another order
  const double expected = run.validations().front().loss, loss = seen.front().loss;
  ++out.tensors;
  if (!(std::abs(loss - expected) <= kMeanOfBatches * std::abs(expected)))
    out.add_fault(
        fmt::format("validation loss, before the first step: {:.7g}, but {:.7g} without dropout", loss, expected));
}

/// True if two sequences are equal only by mistake. A corpus of the user's may be short, and repeat.
bool draws_each_sequence_once(const CellConfig& cell) {
  constexpr double kFewBits = 64.0;
  if (!is_language_model(cell)) return true;
  if (cell.training.data == Data::kText) return cell.training.corpus.empty();
  return static_cast<double>(seq_of_rank(cell)) * std::log2(static_cast<double>(cell.model.vocabulary)) >= kFewBits;
}

/// Every sequence is read once: ranks, micro-batches and steps have sequences of their own. Collective.
void compare_inputs(const CellConfig& cell, const std::vector<RecordedStep>& steps, ProcessGroup* world,
                    TwinFindings& out) {
  std::vector<std::uint64_t> mine;
  for (const RecordedStep& step : steps) mine.insert(mine.end(), step.inputs.begin(), step.inputs.end());
  const std::vector<std::uint64_t> all = of_all_ranks(world, mine, "twin inputs");
  if (!draws_each_sequence_once(cell) || (world != nullptr && world->rank() != 0)) return;
  const auto batch = static_cast<std::size_t>(cell.model.batch);
  const auto of_step = batch * static_cast<std::size_t>(cell.training.micro_batches);
  const auto place = [&](std::size_t i) {
    const std::size_t own = i % mine.size();
    return fmt::format("sequence {}, rank {}, micro-batch {}, step {}", own % batch, i / mine.size(),
                       own % of_step / batch, own / of_step);
  };
  std::unordered_map<std::uint64_t, std::size_t> first;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (const auto [known, is_new] = first.emplace(all[i], i); !is_new)
      out.add_fault(fmt::format("input, {}: it is the input of {} again", place(i), place(known->second)));
}

/// What all ranks computed.
struct Seen {
  std::vector<AllRanks> steps;        ///< on rank 0, elsewhere empty
  const std::vector<double>& losses;  ///< by step, the mean over ranks
  const std::vector<ValidationLoss>& validations;
  const Lists& weights;
};

void compare_joined(const CellConfig& cell, const PlainTwin& twin, const Recipe& recipe, const Seen& seen,
                    const std::vector<std::string>& names, const std::vector<Shape>& shapes, TwinFindings& out) {
  // The twin is not sharded, so it trains without the others, which wait in put_twin_findings().
  if (seen.steps.empty()) return;
  CellConfig plain = twin.cell;
  plain.training.steps = twin.steps;
  // A schedule ends at the step at which the cell's schedule ends.
  if (plain.training.decay_steps == 0) plain.training.decay_steps = cell.training.steps;
  TwinRecorder recorder(twin.steps, seen.steps);
  TrainingRun run(plain, Behaviors{}, recipe, {.watch = &recorder, .joined = twin.joined});
  run.train();
  std::optional<ExactRecorder> exact;
  std::vector<float> exact_losses = run.losses();
  const CellConfig in_full = in_f32(plain);
  if (twin.splits && twin.steps > twin.first) {
    exact.emplace(twin.steps, recorder.steps());
    TrainingRun exact_run(in_full, Behaviors{}, make_recipe("bf16"), {.watch = &*exact, .joined = twin.joined});
    exact_run.train();
    exact_losses = exact_run.losses();
  }
  const std::vector<Lists> parts = noise_by_step(twin, cell.training.micro_batches, recipe, recorder.steps());
  TwinComparison comparison(cell, twin, recipe, out);
  for (std::int64_t step = 0; step < twin.steps; ++step) {
    const auto at = static_cast<std::size_t>(step);
    comparison.compare_step(step, seen.steps[at], recorder.steps()[at], exact ? &exact->steps()[at] : nullptr,
                            parts.empty() ? nullptr : &parts[at], names, shapes);
    if (step >= twin.first)
      comparison.compare_loss(fmt::format("loss, step {}", step), seen.losses[at],
                              static_cast<double>(run.losses()[at]), static_cast<double>(exact_losses[at]));
  }
  compare_undropped_validation(plain, recipe, seen.validations, out);
  for (const ValidationLoss& of_twin : run.validations()) {
    const auto found = std::ranges::find(seen.validations, of_twin.step, &ValidationLoss::step);
    // The twin's last step need not be the cell's.
    if (found != seen.validations.end())
      comparison.compare_loss(fmt::format("validation loss, after step {}", of_twin.step), found->loss, of_twin.loss,
                              of_twin.loss);
  }
  if (twin.compares_weights) comparison.compare_weights(names, seen.weights, run.weights());
}

}  // namespace

void measure_plain_twin(const CellConfig& cell, Arm arm, TrainingRun& run, const StepRecorder& recorder,
                        const Lists& weights, ProcessGroup* world, ArmResult& result) {
  if (const std::string reason = why_no_plain_twin(cell, arm); !reason.empty()) {
    for (const char* name : kTwinMetrics) put(result.metrics, name, std::nullopt, reason);
    return;
  }
  const PlainTwin twin = plain_twin(cell, arm);
  const Recipe recipe = recipe_of(cell, arm);
  const std::vector<std::string> names = run.parameter_names();
  const std::vector<Shape> shapes = shapes_of(run);
  TwinFindings found;
  compare_inputs(cell, recorder.steps(), world, found);
  if (twin.same_split) compare_same_split(twin, recipe, recorder, run.losses(), names, world, found);
  Seen seen{.steps = {}, .losses = result.losses, .validations = result.validation_losses, .weights = weights};
  for (const RecordedStep& step : recorder.steps()) {
    AllRanks all = of_all_ranks_in_step(world, cell, step, run.own_elements(), shapes);
    if (world == nullptr || world->rank() == 0) seen.steps.push_back(std::move(all));
  }
  compare_joined(cell, twin, recipe, seen, names, shapes, found);
  put_twin_findings(found, world, result);
}

}  // namespace fp8lab

#include "harness/train/training_run.h"

#include <algorithm>
#include <utility>

#include "autograd/functions.h"
#include "core/check.h"
#include "harness/cell/metrics.h"
#include "harness/cell/sharding_keys.h"
#include "harness/train/shared_folder.h"
#include "harness/train/shared_gpus.h"
#include "ops/elementwise.h"

namespace fp8lab {
namespace {

Traffic difference(const Traffic& now, const Traffic& before) {
  Traffic out;
  for (std::size_t i = 0; i < kCollectiveKinds; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    const TrafficCount &a = now.of(kind), &b = before.of(kind);
    out.add(kind, {a.collectives - b.collectives, a.payload_bytes - b.payload_bytes, a.scale_bytes - b.scale_bytes});
  }
  return out;
}

/// The ranks that train the cell together; null if it is neither sharded nor replicated.
ProcessGroup* ranks_of(const CellConfig& cell, ProcessGroup* world) {
  if (!has_ranks(cell)) return nullptr;
  check(world != nullptr, "a sharded or replicated cell needs ranks to train on");
  return world;
}

/// The ranks of `world` for buffers on `device`; null without a world.
std::unique_ptr<ProcessGroup> ranks_on(Device& device, ProcessGroup* world) {
  if (world == nullptr) return nullptr;
  return world->for_device(device);
}

/// The ranks of `world` that split the sequences of this one: neighbours, as in Megatron.
std::unique_ptr<ProcessGroup> context_group_of(const CellConfig& cell, ProcessGroup* world) {
  if (cell.context_parallel == 1) return nullptr;
  check(world != nullptr, "sequences are split only over the ranks of a sharded cell");
  std::vector<SplitPlace> places;
  for (int rank = 0; rank < world->size(); ++rank)
    places.push_back({.color = rank / cell.context_parallel, .key = rank % cell.context_parallel});
  return world->split(places, "context");
}

/// The part of the experts that a rank has. A model that is not sharded may be built with a rank's part, to compare it.
RowPart expert_part_of(const CellConfig& cell, const ProcessGroup* world) {
  const int parts = cell.expert_parallel;
  return {.part = world == nullptr ? 0 : world->rank() % parts, .parts = parts};
}

std::vector<std::string> shared_gpus_of(Device& device, ProcessGroup* world) {
  if (world == nullptr) return {};
  return shared_gpus(device, *world);
}

/// What a micro-batch's loss counts in the loss of the step: a mean over all tokens of the step stays one.
float share_of_micro_batch(const TrainingConfig& training, std::int64_t mean_over) {
  return training.loss == Loss::kSum ? 1.0f
                                     : 1.0f / static_cast<float>(mean_over > 0 ? mean_over : training.micro_batches);
}

constexpr double kPlantedShare = 0.05;  // share of a step's time

}  // namespace

TrainingRun::TrainingRun(const CellConfig& cell, const Behaviors& behaviors, const Recipe& recipe,
                         const TrainingRunOptions& options)
    : cell_(cell),
      // Filling memory with poison takes time, so cells that measure time do without.
      device_(open_device(cell.device, {.arch = cell.arch,
                                        .rank = options.world != nullptr ? options.world->local_rank() : 0,
                                        .memory = {.capacity_bytes = static_cast<std::size_t>(cell.capacity),
                                                   .poison = !any_group(cell.measure, &MetricGroup::alone),
                                                   .record_timeline = options.record_timeline},
                                        .deterministic = cell.training.deterministic,
                                        .tensor_core_sums = cell.training.fp8_sums == Fp8Sums::kTensorCore})),
      host_world_(ranks_of(cell, options.world)),
      world_(ranks_on(*device_, host_world_)),
      context_group_(context_group_of(cell, world_.get())),
      shared_gpus_(shared_gpus_of(*device_, host_world_)),
      runtime_{.device = *device_,
               .behaviors = behaviors,
               .seed = cell.training.seed,
               .context_group = context_group_.get(),
               .expert_part = expert_part_of(cell, options.world),
               .loss_share = share_of_micro_batch(cell.training, options.mean_over)},
      trained_(cell, runtime_, recipe, world_.get()),
      batches_(cell, runtime_, world_ ? world_->rank() : 0, options.joined),
      records_(cell, runtime_, options.record_timeline),
      casts_(options.casts),
      cast_steps_(options.cast_steps),
      saw_micro_batch_(options.saw_micro_batch),
      saw_step_(options.saw_step),
      saw_validation_(options.saw_validation),
      saw_layer_(options.saw_layer),
      watch_(device_->computes() ? options.watch : nullptr),
      planted_(options.planted),
      share_(static_cast<float>(runtime_.loss_share)) {
  if (saw_step_) tap_layers(trained_.model(), step_values_.layers, saw_layer_);
  if (planted_)
    planted_byte_ = device_->allocate({Shape{1}, DType::kE4M3},
                                      device_->holder(HolderKind::kRecipeState, "control", "planted byte"));
}

std::vector<std::string> TrainingRun::warnings() const {
  std::vector<std::string> warnings = shared_gpus_;
  for (std::string& warning : trained_.warnings()) warnings.push_back(std::move(warning));
  return warnings;
}

void TrainingRun::run() {
  if (keeps()) values_.initial_weights = weights();
  train();
  if (keeps()) values_.weights = weights();
}

void TrainingRun::train() {
  validate(0);
  for (std::int64_t step = 0; step < cell_.training.steps; ++step) {
    runtime_.step = step;
    records_.begin(step);
    if (step > 0 && step == cell_.training.resume_at) resume();
    const bool communicates = trained_.mesh() != nullptr;
    const Traffic before = communicates ? traffic() : Traffic{};
    this->step();
    if (communicates) last_step_traffic_ = difference(traffic(), before);
    if (validates_after(step + 1)) validate(step + 1);
  }
}

Traffic TrainingRun::traffic() const {
  Traffic total = trained_.traffic();
  if (context_group_ == nullptr) return total;
  for (std::size_t i = 0; i < kCollectiveKinds; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    total.add(kind, context_group_->traffic().of(kind));
  }
  return total;
}

bool TrainingRun::watches_casts(std::int64_t step) const {
  const std::int64_t last = cell_.training.steps - 1, watched = std::min(cast_steps_, cell_.training.steps);
  if (watched < 2) return step == last;
  // Step i * last / (watched - 1) for some i.
  const std::int64_t i = (step * (watched - 1) + last - 1) / std::max<std::int64_t>(last, 1);
  return i * last / (watched - 1) == step;
}

void TrainingRun::resume() {
  const SharedFolder folder(host_world_);
  trained_.save(folder.path());
  output_ = loss_ = {};
  trained_.restore(folder.path());
  if (saw_step_) tap_layers(trained_.model(), step_values_.layers, saw_layer_);
  if (host_world_ != nullptr) host_world_->barrier("training state loaded");  // rank 0 removes the folder next
}

Variable TrainingRun::loss_of(const Variable& output) {
  if (is_language_model(cell_)) return cross_entropy(runtime_, output, batch_.target);
  return batch_.target ? mse_loss(runtime_, output, batch_.target) : sum_loss(runtime_, output);
}

bool TrainingRun::validates_after(std::int64_t steps) const {
  const std::int64_t every = cell_.training.validate_every;
  return every > 0 && (steps % every == 0 || steps == cell_.training.steps);
}

void TrainingRun::validate(std::int64_t steps) {
  Model& model = trained_.model();
  const int number = static_cast<int>(runtime_.step);
  const std::int64_t batches = cell_.training.validation_batches;
  runtime_.host.samples = nullptr;  // only steps are measured
  double sum = 0.0;
  // The first forward gives histories their length.
  const bool compares = keeps() && batches > 0 && cell_.training.initial_history_length == 0;
  const std::map<std::string, std::vector<float>> scales =
      compares ? trained_.scales() : std::map<std::string, std::vector<float>>{};
  for (std::int64_t index = 0; index < batches; ++index) {
    device_->ledger().set_phase(PhaseKind::kIdle, number);
    batch_ = batches_.validation(index);
    device_->ledger().set_phase(PhaseKind::kForward, number);
    runtime_.mode = Runtime::Mode::kEvaluating;
    runtime_.first_micro_batch = true;
    const Variable output = model.forward(runtime_, {batch_.x, nullptr});
    const Variable loss = loss_of(output);
    runtime_.mode = Runtime::Mode::kPlain;
    device_->synchronize();
    if (device_->computes()) sum += static_cast<double>(device_->read(loss.value).front());
    if (saw_validation_)
      saw_validation_(device_->read(output.value), batch_.target ? device_->read(batch_.target) : std::vector<float>());
    batch_ = {};
  }
  if (compares && trained_.scales() != scales) validations_keep_scales_ = false;
  device_->ledger().set_phase(PhaseKind::kIdle, number);
  if (batches > 0 && device_->computes()) records_.add_validation({steps, sum / static_cast<double>(batches)});
}

void TrainingRun::pass_micro_batch(std::int64_t index, StepTimes& times) {
  Ledger& ledger = device_->ledger();
  Model& model = trained_.model();
  const int number = static_cast<int>(runtime_.step);
  const bool last = index + 1 == cell_.training.micro_batches;
  const bool keep = last && runtime_.step + 1 == cell_.training.steps && keeps();

  ledger.set_phase(PhaseKind::kIdle, number);
  batch_ = {};
  batch_ = batches_.training(index);
  if (watch_ != nullptr) watch_->saw_input(*device_, batch_.x, cell_.model.batch);
  device_->synchronize();
  Stopwatch watch;

  ledger.set_phase(PhaseKind::kForward, number);
  runtime_.first_micro_batch = index == 0;
  output_ = model.forward(runtime_, {batch_.x, nullptr});
  output_.value.rename(device_->holder(HolderKind::kOutput, "", "y"));
  loss_ = loss_of(output_);
  if (saw_step_) trained_.add_amaxes(model.registry().forward_scales, step_values_.amaxes);
  model.update_forward_scales(runtime_, world_.get());
  device_->synchronize();
  times.forward_ms += watch.lap_ms();
  ledger.mark("end_of_forward");
  if (device_->computes()) records_.add_loss(index, share_ * device_->read(loss_.value).front());
  if (watch_ != nullptr) watch_->saw_output(*device_, output_.value);
  if (keep) values_.output = device_->read(output_.value);
  if (saw_step_) {
    step_values_.x = device_->read(batch_.x);
    if (batch_.target) step_values_.target = device_->read(batch_.target);
    step_values_.output = device_->read(output_.value);
    step_values_.loss = device_->read(loss_.value).front();
  }
  // Only the loss uses the logits from here on: its backward writes their gradient over them.
  if (is_language_model(cell_)) output_.value = {};

  watch.lap_ms();
  ledger.set_phase(PhaseKind::kBackward, number);
  Tensor gradient = device_->allocate({Shape{1, 1}, DType::kF32}, runtime_.in_flight("loss"));
  fill(*device_, gradient, share_);
  run_backward(runtime_, loss_, std::move(gradient));
  if (last) trained_.reduce_gradients();
  if (saw_step_) trained_.add_amaxes(model.registry().backward_scales, step_values_.amaxes);
  model.update_backward_scales(runtime_, world_.get());
  device_->synchronize();
  times.backward_ms += watch.lap_ms();
  if (last) device_->watch_casts(nullptr);
  if (!cell_.training.keep_loss) output_ = loss_ = {};
  ledger.mark("end_of_backward");
  if (keep) values_.gradients = trained_.gradients();
  if (saw_micro_batch_) saw_micro_batch_(step_values_);
}

std::optional<std::int64_t> TrainingRun::reserved_growth_bytes() const {
  if (cell_.training.steps < 3) return std::nullopt;
  return reserved_after_last_ - reserved_after_second_;
}

TrainingRun::Passes TrainingRun::pass_once_more(const Weights* weights) {
  Passes out;
  runtime_.step = cell_.training.steps;
  output_ = loss_ = {};
  if (weights != nullptr) {
    trained_.write_weights(weights->values);
    trained_.write_router_biases(weights->router_biases);
  }
  for (std::int64_t index = 0; index < cell_.training.micro_batches; ++index) {
    batch_ = {};
    batch_ = batches_.training(index);
    runtime_.first_micro_batch = index == 0;
    Variable output = trained_.model().forward(runtime_, {batch_.x, nullptr});
    const Variable loss = loss_of(output);
    trained_.model().update_forward_scales(runtime_, world_.get());
    out.output = device_->read(output.value);
    if (is_language_model(cell_)) output.value = {};  // backward writes the logits' gradient over them
    Tensor gradient = device_->allocate({Shape{1, 1}, DType::kF32}, runtime_.in_flight("loss"));
    fill(*device_, gradient, share_);
    run_backward(runtime_, loss, std::move(gradient));
    trained_.model().update_backward_scales(runtime_, world_.get());
  }
  trained_.reduce_gradients();
  out.gradients = trained_.gradients();
  trained_.model().zero_grad();
  batch_ = {};
  return out;
}

void TrainingRun::plant_in_step(StepTimes& times) {
  if (world_) world_->barrier("planted by a control cell");
  const double ms = kPlantedShare * (times.forward_ms + times.backward_ms + times.optimizer_ms);
  Stopwatch watch;
  double planted = 0;
  while (planted < ms) planted += watch.lap_ms();
  times.optimizer_ms += planted;
}

void TrainingRun::step() {
  Ledger& ledger = device_->ledger();
  const int number = static_cast<int>(runtime_.step);
  StepTimes times;
  if (device_->computes() && watches_casts(runtime_.step)) device_->watch_casts(casts_);
  if (saw_step_) step_values_.weights = weights();
  if (watch_ != nullptr) watch_->begin_step(trained_, *device_, runtime_.step);
  for (std::int64_t index = 0; index < cell_.training.micro_batches; ++index) pass_micro_batch(index, times);
  if (watch_ != nullptr) watch_->end_passes(trained_, *device_);

  Stopwatch watch;
  ledger.set_phase(PhaseKind::kOptimizer, number);
  std::vector<std::vector<float>> gradients;  // before the optimizer
  if (saw_step_) gradients = trained_.gradients();
  trained_.update();
  if (saw_step_) {
    step_values_.gradients = std::move(gradients);
    step_values_.updated = weights();
    step_values_.averages = trained_.averages();
    step_values_.router_biases = trained_.router_biases();
    saw_step_(step_values_);
  }
  trained_.model().zero_grad();
  device_->synchronize();
  times.optimizer_ms = watch.lap_ms();
  if (planted_) plant_in_step(times);
  batch_ = {};
  ledger.set_phase(PhaseKind::kIdle, number);
  ledger.mark("end_of_step");
  reserved_after_last_ = device_->memory().allocator().reserved_bytes();
  if (runtime_.step == 1) reserved_after_second_ = reserved_after_last_;
  times.step_ms = times.forward_ms + times.backward_ms + times.optimizer_ms;
  records_.end(runtime_.step, times);
}

}  // namespace fp8lab

#include "harness/measure/training_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include "autograd/functions.h"
#include "core/check.h"
#include "core/heap_allocations.h"
#include "fsdp/row_split.h"
#include "harness/cell/metrics.h"
#include "harness/cell/sharding_keys.h"
#include "harness/measure/shared_folder.h"
#include "harness/measure/stress_data.h"
#include "ops/elementwise.h"
#include "ops/quantize.h"
#include "optim/foreach_adam.h"
#include "optim/saved_state.h"

namespace fp8lab {
namespace {

class Stopwatch {
 public:
  double lap_ms() {
    const auto now = std::chrono::steady_clock::now();
    const double ms = std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    return ms;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

DType training_dtype(ParamDType dtype) { return dtype == ParamDType::kF32 ? DType::kF32 : DType::kBF16; }

ModelOptions model_options(const CellConfig& cell) {
  return {.layer = cell.model.layer,
          .layers = cell.model.layers,
          .config = layer_config(cell.model, cell.training.fp8_attention),
          .dtype = training_dtype(cell.training.param_dtype),
          .checkpoint_layers = cell.training.checkpoint == Recompute::kFull,
          .eight_bit_weights = cell.training.quantized_weights,
          .fused_quantize = cell.training.fused_quantize,
          .deferred_init = defers_init(cell),
          .cache_weights = cell.training.cache_weights};
}

Traffic difference(const Traffic& now, const Traffic& before) {
  Traffic out;
  for (std::size_t i = 0; i < kCollectiveKinds; ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    const TrafficCount &a = now.of(kind), &b = before.of(kind);
    out.add(kind, {a.collectives - b.collectives, a.payload_bytes - b.payload_bytes, a.scale_bytes - b.scale_bytes});
  }
  return out;
}

MasterWeights master_weights(Master master) {
  switch (master) {
    case Master::kNone: return MasterWeights::kNone;
    case Master::kF32: return MasterWeights::kF32;
    case Master::kRemainder: return MasterWeights::kRemainder;
  }
  return MasterWeights::kNone;
}

/// `shards`: the ranks over which a parameter is sharded, or null.
AdamOptions adam_options(const TrainingConfig& t, ProcessGroup* shards) {
  return {.learning_rate = t.learning_rate,
          .weight_decay = t.weight_decay,
          .decoupled_decay = t.decoupled_decay,
          .master = master_weights(t.master_weights),
          .exp_avg = *parse_dtype(t.moments.text()),
          .exp_avg_sq = *parse_dtype(t.moments.text()),
          .max_grad_norm = t.clip_norm,
          .norm_group = shards};
}

/// The ranks of `world` for buffers on `device`; null without a world.
std::unique_ptr<ProcessGroup> ranks_on(Device& device, ProcessGroup* world) {
  if (world == nullptr) return nullptr;
  return world->on(device);
}

constexpr double kAverageDecay = 0.9;
constexpr double kPlantedShare = 0.05;  // of a step's time

}  // namespace

LayerConfig layer_config(const ModelConfig& model, bool fp8_attention) {
  return {.form = layer_form(model.form),
          .hidden = model.hidden,
          .heads = model.heads,
          .kv_heads = model.kv_heads == 0 ? model.heads : model.kv_heads,
          .ffn = model.ffn == 0 ? 4 * model.hidden : model.ffn,
          .seq = model.seq,
          .batch = model.batch,
          .fp8_attention = fp8_attention,
          .fuse_mlp = model.op_fuser == OpFuser::kMlp,
          .dropout = static_cast<float>(model.dropout),
          .experts = model.experts,
          .uneven_split = model.split == GroupSplit::kUneven};
}

TrainingRun::TrainingRun(const CellConfig& cell, const Behaviors& behaviors, const Recipe& recipe,
                         const TrainingRunOptions& options)
    : cell_(cell),
      // Filling memory with poison takes time, so cells that measure time do without.
      device_(open_device(cell.device, {.arch = cell.arch,
                                        .rank = options.world != nullptr ? options.world->local_rank() : 0,
                                        .memory = {.capacity_bytes = static_cast<std::size_t>(cell.capacity),
                                                   .poison = !any_group(cell.measure, &MetricGroup::alone),
                                                   .record_timeline = options.record_timeline},
                                        .deterministic = cell.training.deterministic})),
      host_world_(is_sharded(cell) ? options.world : nullptr),
      ranks_(ranks_on(*device_, host_world_)),
      runtime_{.device = *device_, .behaviors = behaviors, .seed = cell.training.seed},
      recipe_(recipe),
      world_(ranks_.get()),
      casts_(options.casts),
      saw_step_(options.saw_step),
      record_timeline_(options.record_timeline),
      planted_(options.planted) {
  if (is_sharded(cell)) {
    check(world_ != nullptr, "a sharded cell needs ranks to train on");
    record_shared_gpus(*options.world);
    first_row_ = world_->rank() * cell.training.micro_batches * cell.model.seq * cell.model.batch;
    const MeshText shape = mesh_of(cell);
    mesh_ = std::make_unique<Mesh>(*world_, MeshShape{.replicas = shape.replicas, .shards = shape.shards});
  }
  build();
  if (planted_)
    planted_byte_ = device_->allocate({Shape{1}, DType::kE4M3},
                                      device_->holder(HolderKind::kRecipeState, "control", "planted byte"));
}

void TrainingRun::build() {
  const TrainingConfig& training = cell_.training;
  model_ = std::make_unique<Model>(runtime_, recipe_, model_options(cell_));
  if (mesh_)
    sharding_ =
        std::make_unique<Sharding>(runtime_, *model_, *mesh_,
                                   ShardingOptions{.reshard_after_forward = cell_.reshard_after_forward,
                                                   .gather_ahead = cell_.gather_ahead,
                                                   .checkpoint_layers = training.checkpoint == Recompute::kFull});
  const AdamOptions options = adam_options(training, mesh_ ? &mesh_->shard_group() : nullptr);
  if (training.optimizer == Optimizer::kAdam) {
    adam_ = std::make_unique<Adam>(model_->parameters(), options);
    optimizer_step_ = [this](Runtime& runtime) { adam_->step(runtime); };
  } else if (training.optimizer == Optimizer::kForeachAdam) {
    optimizer_step_ = [adam = std::make_shared<ForeachAdam>(model_->parameters(), options)](Runtime& runtime) {
      adam->step(runtime);
    };
  }
  if (training.weight_average)
    average_ = std::make_unique<WeightAverage>(runtime_, model_->parameters(), kAverageDecay);
}

void TrainingRun::resume() {
  const SharedFolder folder(host_world_);
  // Under HSDP all replicas have the same state. Each saves and loads its own copy, as a replica that resumes on other
  // hosts would.
  ProcessGroup* const replicas = mesh_ ? mesh_->replica_group() : nullptr;
  const std::filesystem::path own =
      folder.path() / fmt::format("replica-{}", replicas != nullptr ? replicas->rank() : 0);
  ProcessGroup* const shards = mesh_ ? &mesh_->shard_group() : nullptr;
  const auto state = [&] {
    const Registry& registry = model_->registry();
    return TrainingState{.parameters = model_->parameters(),
                         .optimizer = adam_.get(),
                         .forward_scales = registry.forward_scales,
                         .backward_scales = registry.backward_scales,
                         .step = runtime_.step};
  };
  if (device_->computes()) save_training_state(runtime_, own, state(), shards);
  output_ = loss_ = {};
  optimizer_step_ = {};
  adam_.reset();
  sharding_.reset();
  model_.reset();
  build();
  if (device_->computes()) runtime_.step = load_training_state(runtime_, own, state(), shards);
  if (host_world_ != nullptr) host_world_->barrier("training state loaded");  // rank 0 removes the folder next
}

Tensor TrainingRun::make_input(std::string_view name, float scale) {
  const ModelConfig& model = cell_.model;
  const Shape shape{model.seq * model.batch, model.hidden};
  Tensor tensor = device_->allocate({shape, training_dtype(cell_.training.param_dtype)},
                                    device_->holder(HolderKind::kInput, "", name));
  random_fill(*device_, tensor,
              {.seed = runtime_.seed,
               .stream = stream_of(name) + static_cast<std::uint64_t>(runtime_.step),
               .row_offset = runtime_.row_offset,
               .scale = scale});
  if (cell_.training.data == Data::kStress && device_->computes()) {
    std::vector<float> values = device_->read(tensor);
    stress(values, model.hidden, name.ends_with("target") ? kStressedTarget : kStressedInput);
    device_->write(tensor, values);
  }
  return tensor;
}

std::vector<std::vector<float>> TrainingRun::read_gradients() {
  std::vector<std::vector<float>> values;
  for (const Parameter* parameter : model_->parameters())
    values.push_back(device_->read((parameter->local ? parameter->local : parameter)->grad));
  return values;
}

void TrainingRun::visit_parameters(const std::function<void(const Parameter&)>& visit, Pass pass) {
  if (sharding_) sharding_->unshard(runtime_, pass);
  for (const Parameter* parameter : model_->parameters()) visit(*parameter);
  if (sharding_) sharding_->reshard();
}

std::vector<std::string> TrainingRun::parameter_names() const {
  std::vector<std::string> names;
  for (const Parameter* parameter : model_->parameters()) names.push_back(parameter->name);
  return names;
}

std::vector<ElementRange> TrainingRun::own_elements() const {
  const int shards = mesh_ ? mesh_->shape().shards : 1, rank = mesh_ ? mesh_->shard_group().rank() : 0;
  std::vector<ElementRange> ranges;
  for (const Parameter* parameter : model_->parameters()) {
    const RowSplit split(dim0(parameter->spec.shape), shards);
    const std::int64_t row = row_elems(parameter->spec.shape);
    ranges.push_back({.begin = split.begin(rank) * row, .end = split.begin(rank + 1) * row});
  }
  return ranges;
}

std::vector<std::vector<float>> TrainingRun::weights() {
  std::vector<std::vector<float>> values;
  visit_parameters([&](const Parameter& parameter) {
    const bool eight_bits = !parameter.quantized.empty();
    values.push_back(device_->read(eight_bits ? dequantize(*device_, parameter.quantized.rowwise_operand(), DType::kF32,
                                                           runtime_.workspace(parameter.name))
                                              : parameter.value));
  });
  return values;
}

Traffic TrainingRun::traffic() const {
  Traffic total;
  for (const ProcessGroup* group : {&mesh_->world(), &mesh_->shard_group(), mesh_->replica_group()})
    for (std::size_t kind = 0; group != nullptr && kind < kCollectiveKinds; ++kind)
      total.add(static_cast<CollectiveKind>(kind), group->traffic().of(static_cast<CollectiveKind>(kind)));
  return total;
}

void TrainingRun::measure_host_work() {
  const std::int64_t steps = std::min(cell_.training.steps, kTimedSteps + 1);
  host_work_.reserve(static_cast<std::size_t>(cell_.model.layers * steps * cell_.training.micro_batches));
  measure_host_work_ = true;
  runtime_.host.heap_allocations = heap_allocations;
}

std::vector<PreForwardSample> TrainingRun::host_work() const {
  return {host_work_.begin() + static_cast<std::ptrdiff_t>(host_work_of_first_step_), host_work_.end()};
}

std::vector<std::string> TrainingRun::warnings() const {
  std::vector<std::string> warnings = shared_gpus_;
  if (sharding_)
    for (const std::string& warning : sharding_->warnings()) warnings.push_back(warning);
  return warnings;
}

void TrainingRun::record_shared_gpus(ProcessGroup& world) {
  const PeerAccess* const memory = device_->peer_access();
  if (memory == nullptr) return;
  const std::uint64_t own = std::hash<std::string>()(memory->gpu());
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  std::vector<std::int64_t> offsets(all.size() + 1);
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int64_t>(i * sizeof own);
  const GatherPart part{.from = reinterpret_cast<const std::byte*>(&own),
                        .to = reinterpret_cast<std::byte*>(all.data()),
                        .offsets_bytes = offsets};
  world.all_gather({&part, 1}, "GPUs");
  const std::size_t gpus = std::set<std::uint64_t>(all.begin(), all.end()).size();
  if (gpus < all.size())
    shared_gpus_.push_back(fmt::format("{} ranks on {} GPU{}", all.size(), gpus, gpus == 1 ? "" : "s"));
}

void TrainingRun::run() {
  if (keeps()) values_.initial_weights = weights();
  train();
  if (keeps()) values_.weights = weights();
}

bool TrainingRun::is_timed(std::int64_t step) const {
  const std::int64_t others = cell_.training.steps - 1, apart = (others + kTimedSteps - 1) / kTimedSteps;
  return step == 0 || (step - 1) % apart == 0;
}

void TrainingRun::choose_what_is_kept(std::int64_t step) {
  const std::int64_t left = cell_.training.steps - step;
  if (record_timeline_) device_->ledger().record_timeline(step < kTimelineSteps || left <= kTimelineSteps);
  runtime_.host.samples = measure_host_work_ && is_timed(step) ? &host_work_ : nullptr;
}

void TrainingRun::validate() {
  for (std::int64_t batch = 0; batch < cell_.training.validation_batches; ++batch) {
    device_->ledger().set_phase(PhaseKind::kIdle, 0);
    runtime_.row_offset = first_row_ + batch * cell_.model.seq * cell_.model.batch;
    input_ = make_input("validation x", 1.0f);
    if (cell_.training.loss == Loss::kMse) target_ = make_input("validation target", 1.0f);
    device_->ledger().set_phase(PhaseKind::kForward, 0);
    runtime_.mode = Runtime::Mode::kEvaluating;
    runtime_.first_micro_batch = true;
    const Variable output = model_->forward(runtime_, {input_, nullptr});
    const Variable loss = target_ ? mse_loss(runtime_, output, target_) : sum_loss(runtime_, output);
    runtime_.mode = Runtime::Mode::kPlain;
    device_->synchronize();
    input_ = {};
    target_ = {};
  }
}

void TrainingRun::train() {
  validate();
  for (std::int64_t step = 0; step < cell_.training.steps; ++step) {
    runtime_.step = step;
    choose_what_is_kept(step);
    if (step > 0 && step == cell_.training.resume_at) resume();
    const Traffic before = sharding_ ? traffic() : Traffic{};
    this->step();
    if (sharding_) last_step_traffic_ = difference(traffic(), before);
    if (step == 0) host_work_of_first_step_ = host_work_.size();
  }
}

void TrainingRun::pass_micro_batch(std::int64_t index, StepTimes& times) {
  Ledger& ledger = device_->ledger();
  const int number = static_cast<int>(runtime_.step);
  const bool last = index + 1 == cell_.training.micro_batches;
  const bool keep = last && runtime_.step + 1 == cell_.training.steps && keeps();

  ledger.set_phase(PhaseKind::kIdle, number);
  input_ = {};
  target_ = {};
  runtime_.row_offset = first_row_ + index * cell_.model.seq * cell_.model.batch;
  input_ = make_input("x", 1.0f);
  if (cell_.training.loss == Loss::kMse) target_ = make_input("target", 1.0f);
  device_->synchronize();
  Stopwatch watch;

  ledger.set_phase(PhaseKind::kForward, number);
  runtime_.first_micro_batch = index == 0;
  output_ = model_->forward(runtime_, {input_, nullptr});
  output_.value.rename(device_->holder(HolderKind::kOutput, "", "y"));
  loss_ = target_ ? mse_loss(runtime_, output_, target_) : sum_loss(runtime_, output_);
  model_->update_forward_scales(runtime_, world_);
  device_->synchronize();
  times.forward_ms += watch.lap_ms();
  ledger.mark("end_of_forward");
  if (device_->computes()) {
    const float loss = device_->read(loss_.value).front();
    if (index == 0)
      losses_.push_back(loss);
    else
      losses_.back() += loss;
  }
  if (keep) values_.output = device_->read(output_.value);
  if (saw_step_) {
    step_values_.x = device_->read(input_);
    if (target_) step_values_.target = device_->read(target_);
    step_values_.output = device_->read(output_.value);
    step_values_.loss = losses_.back();
  }

  watch.lap_ms();
  ledger.set_phase(PhaseKind::kBackward, number);
  run_backward(runtime_, loss_);
  model_->update_backward_scales(runtime_, world_);
  device_->synchronize();
  times.backward_ms += watch.lap_ms();
  if (last) device_->watch_casts(nullptr);
  if (!cell_.training.keep_loss) output_ = loss_ = {};
  ledger.mark("end_of_backward");
  if (keep) values_.gradients = read_gradients();
  if (saw_step_) step_values_.gradients = read_gradients();
}

void TrainingRun::plant_in_step(StepTimes& times) {
  if (mesh_) mesh_->world().barrier("planted by a control cell");
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
  if (runtime_.step + 1 == cell_.training.steps) device_->watch_casts(casts_);
  if (saw_step_) step_values_.weights = weights();
  for (std::int64_t index = 0; index < cell_.training.micro_batches; ++index) pass_micro_batch(index, times);

  Stopwatch watch;
  ledger.set_phase(PhaseKind::kOptimizer, number);
  if (optimizer_step_) optimizer_step_(runtime_);
  if (average_) average_->update(runtime_);
  if (saw_step_) {
    step_values_.updated = weights();
    saw_step_(step_values_);
  }
  model_->zero_grad();
  device_->synchronize();
  times.optimizer_ms = watch.lap_ms();
  if (planted_) plant_in_step(times);
  input_ = {};
  target_ = {};
  ledger.set_phase(PhaseKind::kIdle, number);
  ledger.mark("end_of_step");
  times.step_ms = times.forward_ms + times.backward_ms + times.optimizer_ms;
  if (is_timed(runtime_.step)) times_.push_back(times);
}

}  // namespace fp8lab

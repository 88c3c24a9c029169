#include "harness/training_run.h"

#include <chrono>
#include <utility>

#include "autograd/functions.h"
#include "core/check.h"
#include "harness/sharding_keys.h"
#include "ops/elementwise.h"

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

DType training_dtype(const std::string& text) {
  const auto dtype = parse_dtype(text);
  check(dtype == DType::kBF16 || dtype == DType::kF32, "training.param_dtype: bf16 or f32 needed");
  return *dtype;
}

ModelOptions model_options(const CellConfig& cell) {
  return {.layer = cell.model.layer,
          .layers = cell.model.layers,
          .config = layer_config(cell.model, cell.training.fp8_attention),
          .dtype = training_dtype(cell.training.param_dtype),
          .checkpoint_layers = cell.training.checkpoint == "full",
          .eight_bit_weights = cell.training.quantized_weights};
}

std::unique_ptr<Adam> make_optimizer(const TrainingConfig& t, const Model& model) {
  if (t.optimizer == "none") return nullptr;
  check(t.optimizer == "adam" && t.master_weights == "none" && t.moments == "f32" && t.clip_norm == 0.0 &&
            !t.weight_average,
        "foreach_adam, master_weights, moments, clip_norm and weight_average are not built yet");
  return std::make_unique<Adam>(model.parameters(), AdamOptions{.learning_rate = t.learning_rate,
                                                                .weight_decay = t.weight_decay,
                                                                .decoupled_decay = t.decoupled_decay});
}

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
          .fuse_mlp = model.op_fuser == "mlp",
          .dropout = static_cast<float>(model.dropout)};
}

TrainingRun::TrainingRun(const CellConfig& cell, const Behaviors& behaviors, const Recipe& recipe)
    : cell_(cell),
      device_(open_device(cell.device, {.arch = cell.arch, .memory = {.capacity_bytes = 0, .poison = true}})),
      runtime_{.device = *device_, .behaviors = behaviors, .seed = cell.training.seed},
      model_(runtime_, recipe, model_options(cell)) {
  check(cell.ranks == 1 && !is_sharded(cell), "training over ranks is not built yet");
  optimizer_ = make_optimizer(cell.training, model_);
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
  return tensor;
}

std::vector<std::vector<float>> TrainingRun::read_parameters(bool gradients) {
  std::vector<std::vector<float>> values;
  for (const Parameter* parameter : model_.parameters())
    values.push_back(device_->read(gradients ? parameter->grad : parameter->value));
  return values;
}

void TrainingRun::run() {
  const bool keep = keep_values_ && device_->computes();
  if (keep) values_.initial_weights = read_parameters(false);
  for (std::int64_t step = 0; step < cell_.training.steps; ++step) {
    runtime_.step = step;
    this->step();
  }
  if (keep) values_.weights = read_parameters(false);
}

void TrainingRun::step() {
  Ledger& ledger = device_->ledger();
  const int number = static_cast<int>(runtime_.step);
  const bool last = runtime_.step + 1 == cell_.training.steps;
  const bool keep = keep_values_ && last && device_->computes();
  StepTimes times;

  ledger.set_phase(PhaseKind::kIdle, number);
  Variable input{make_input("x", 1.0f), nullptr};
  Tensor target = cell_.training.loss == "mse" ? make_input("target", 1.0f) : Tensor();
  device_->synchronize();
  Stopwatch watch;

  ledger.set_phase(PhaseKind::kForward, number);
  output_ = model_.forward(runtime_, input);
  output_.value.rename(device_->holder(HolderKind::kOutput, "", "y"));
  loss_ = target ? mse_loss(runtime_, output_, target) : sum_loss(runtime_, output_);
  model_.update_forward_scales(runtime_);
  device_->synchronize();
  times.forward_ms = watch.lap_ms();
  ledger.mark("end_of_forward");
  if (device_->computes()) losses_.push_back(device_->read(loss_.value).front());
  if (keep) values_.output = device_->read(output_.value);

  watch.lap_ms();
  ledger.set_phase(PhaseKind::kBackward, number);
  run_backward(runtime_, loss_);
  model_.update_backward_scales(runtime_);
  device_->synchronize();
  times.backward_ms = watch.lap_ms();
  if (!cell_.training.keep_loss) output_ = loss_ = {};
  ledger.mark("end_of_backward");
  if (keep) values_.gradients = read_parameters(true);

  watch.lap_ms();
  ledger.set_phase(PhaseKind::kOptimizer, number);
  if (optimizer_) optimizer_->step(runtime_);
  model_.zero_grad();
  device_->synchronize();
  times.optimizer_ms = watch.lap_ms();
  input = {};
  target = {};
  ledger.set_phase(PhaseKind::kIdle, number);
  ledger.mark("end_of_step");
  times.step_ms = times.forward_ms + times.backward_ms + times.optimizer_ms;
  times_.push_back(times);
}

}  // namespace fp8lab

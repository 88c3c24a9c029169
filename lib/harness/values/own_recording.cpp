#include "harness/values/own_recording.h"

#include <fmt/format.h>

#include <utility>

#include "backend/device.h"
#include "core/check.h"
#include "harness/cell/sharding_keys.h"
#include "harness/measure/arms.h"
#include "harness/measure/measure.h"
#include "harness/train/training_run.h"
#include "harness/values/recording.h"
#include "ops/quantize.h"

namespace fp8lab {
namespace {

/// Records one rank's tensors while it trains.
class OwnRecorder final : public CastWatch {
 public:
  OwnRecorder(const std::filesystem::path& folder, int rank) : writer_(folder, rank) {}

  void saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) override {
    if (!records_step(step_)) return;
    const HolderId holder = device.holder(HolderKind::kWorkspace, "recorded cast");
    const auto record = [&](const OperandView& operand, const char* orientation) {
      add(module_, fmt::format("cast of {}, {}", text_of(x), orientation), text_of(x),
          device.read(dequantize(device, operand, DType::kF32, holder)));
    };
    if (made.rowwise()) record(made.rowwise_operand(), "row-wise");
    if (made.columnwise()) record(made.columnwise_operand(false), "column-wise");
  }

  void saw_layer(const std::string& layer, LayerTensor which, const std::vector<float>& values) {
    module_ = layer;
    phase_ = which == LayerTensor::kGradient ? "backward" : "forward";
    const char* name = which == LayerTensor::kInput    ? "input"
                       : which == LayerTensor::kOutput ? "output"
                                                       : "gradient of output";
    add(layer, name, std::to_string(values.size()), values);
    if (which == LayerTensor::kOutput) module_.clear();
  }

  void saw_step(const StepValues& seen, const std::vector<std::string>& names) {
    const auto add_all = [&](const char* phase, const char* name, const std::vector<std::vector<float>>& tensors) {
      phase_ = phase;
      for (std::size_t i = 0; i < tensors.size(); ++i)
        add(names.at(i), name, std::to_string(tensors[i].size()), tensors[i]);
    };
    module_.clear();
    add_all("backward", "gradient", seen.gradients);
    add_all("optimizer", "updated weight", seen.updated);
    phase_ = "forward";
    ++step_;
  }

  void finish() { writer_.finish(); }

 private:
  static std::string text_of(const Tensor& x) { return fmt::format("{}x{}", x.rows(), x.cols()); }

  void add(const std::string& module, std::string name, std::string shape, const std::vector<float>& values) {
    if (!records_step(step_)) return;
    writer_.add({.step = step_,
                 .phase = phase_,
                 .module = module,
                 .name = std::move(name),
                 .type = "float32",
                 .shape = std::move(shape),
                 .sketch = sketch_of(values)});
  }

  RecordingWriter writer_;
  std::int64_t step_ = 1;
  std::string phase_ = "forward", module_;
};

void record_rank(const CellConfig& recorded, Arm arm, ProcessGroup* world, const std::filesystem::path& folder) {
  CellConfig cell = recorded;
  cell.capacity = 0;  // what recording allocates is no part of the cell
  OwnRecorder recorder(folder, world == nullptr ? 0 : world->rank());
  std::vector<std::string> names;
  TrainingRun run(cell, behaviors_of(cell, arm), recipe_of(cell, arm),
                  {.world = world,
                   .casts = &recorder,
                   .cast_steps = cell.training.steps,
                   .saw_micro_batch = [](const StepValues&) {},
                   .saw_step = [&](const StepValues& seen) { recorder.saw_step(seen, names); },
                   .saw_layer = [&](const std::string& layer, LayerTensor which,
                                    const std::vector<float>& values) { recorder.saw_layer(layer, which, values); }});
  names = run.parameter_names();
  run.train();
  recorder.finish();
}

}  // namespace

MeasureArm with_recording(MeasureArm measure) {
  return [measure = std::move(measure)](const CellConfig& cell, Arm arm) {
    const std::optional<std::filesystem::path> folder = recording_folder(arm);
    if (!folder) return measure(cell, arm);
    check(open_device(cell.device, {.arch = cell.arch, .memory = {}})->computes(),
          fmt::format("device '{}' computes no values, so none can be recorded; use device cpu or cuda", cell.device));
    if (has_ranks(cell))
      start_ranks_here(cell, [&](ProcessGroup& world) { record_rank(cell, arm, &world, *folder); });
    else
      record_rank(cell, arm, nullptr, *folder);
    return ArmResult{};
  };
}

}  // namespace fp8lab

#include "harness/shared_arms.h"

#include <utility>

#include "harness/json_codec.h"
#include "harness/metrics.h"
#include "harness/verdict.h"

namespace fp8lab {

std::string task_of(CellConfig cell, Arm arm) {
  if (any_group(cell.measure, &MetricGroup::alone)) return {};
  cell.scenario.clear();
  cell.id.clear();
  cell.axes.clear();
  if (arm != Arm::kBefore) cell.fix.clear();
  if (arm == Arm::kBf16) {
    const TrainingConfig none;
    TrainingConfig& training = cell.training;
    training.recipe = none.recipe;
    training.recipe_options = none.recipe_options;
    training.quantized_weights = none.quantized_weights;
    training.fused_quantize = none.fused_quantize;
    training.fp8_attention = none.fp8_attention;
  }
  return std::string(name(arm)) + cell_to_json(cell);
}

SharedArms::SharedArms(TaskFunction task, const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary) : task_(std::move(task)) {
  for (const PlannedCell& cell : cells) {
    if (!cell.skip_reason.empty()) continue;
    for (const Arm arm : arms_of(cell, vocabulary)) ++tasks_[this->task(cell.config, arm)].askers;
  }
}

void SharedArms::begin(const std::string& task) {
  if (task.empty()) return;
  Task& of = tasks_.at(task);
  of.underway = true;
  --of.askers;
}

void SharedArms::finish(const std::string& task, const ArmResult& result, const std::string& id) {
  if (task.empty()) return;
  Task& of = tasks_.at(task);
  of.underway = false;
  of.failed = of.failed || result.status != "ok";
  if (of.askers == 0 || result.status != "ok") return;
  of.result = result;
  of.result->measured_in = id;
}

bool SharedArms::underway(const std::string& task) const {
  if (task.empty()) return false;
  const Task& of = tasks_.at(task);
  return of.underway && !of.failed;
}

std::optional<ArmResult> SharedArms::take(const std::string& task) {
  if (task.empty()) return {};
  Task& of = tasks_.at(task);
  if (!of.result) return {};
  if (--of.askers > 0) return of.result;
  std::optional<ArmResult> last = std::move(of.result);
  of.result.reset();  // timelines may be large
  return last;
}

}  // namespace fp8lab

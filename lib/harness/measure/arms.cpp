#include "harness/measure/arms.h"

#include <array>
#include <string_view>
#include <utility>

#include "fixes/fixes.h"
#include "harness/cell/metrics.h"

namespace fp8lab {

Behaviors behaviors_of(const CellConfig& cell, Arm arm) {
  if (arm != Arm::kBefore || cell.fix.empty()) return {};
  const std::array<std::string_view, 1> reverted{cell.fix};
  return behaviors_without(reverted);
}

Recipe recipe_of(const CellConfig& cell, Arm arm) {
  if (arm == Arm::kBf16) return make_recipe("bf16");
  return make_recipe(cell.training.recipe, cell.training.recipe_options);
}

bool plants_on(const CellConfig& cell, Arm arm, const ProcessGroup* world) {
  const bool last = world == nullptr || world->rank() == world->size() - 1;
  return last && arm == Arm::kBefore && cell.control == Control::kPlanted;
}

CellConfig as_bf16(CellConfig cell) {
  cell.scenario.clear();
  cell.id.clear();
  cell.axes.clear();
  cell.fix.clear();
  cell.control = Control::kNone;
  const TrainingConfig none;
  TrainingConfig& training = cell.training;
  training.recipe = none.recipe;
  training.recipe_options = none.recipe_options;
  training.quantized_weights = none.quantized_weights;
  training.initial_history_length = none.initial_history_length;
  training.masters_from = none.masters_from;
  training.fused_quantize = none.fused_quantize;
  training.fp8_attention = none.fp8_attention;
  training.fp8_sums = none.fp8_sums;
  training.first_layers_bf16 = none.first_layers_bf16;
  training.last_layers_bf16 = none.last_layers_bf16;
  training.fp8_attention_backward = none.fp8_attention_backward;
  training.fp8_mha = none.fp8_mha;
  training.fp8_dispatch = none.fp8_dispatch;
  return cell;
}

CellConfig as_run(const CellConfig& cell, Arm arm) {
  if (arm == Arm::kBf16) return as_bf16(cell);
  CellConfig out = cell;
  out.fix.clear();
  out.control = Control::kNone;
  return out;
}

void put(std::map<std::string, MetricValue>& metrics, const std::string& name, std::optional<double> value,
         std::string reason) {
  const Metric* row = find_metric(name);
  metrics[name] = {
      .value = value, .predicted = {}, .unit = row ? std::string(row->unit) : "1", .reason = std::move(reason)};
}

}  // namespace fp8lab

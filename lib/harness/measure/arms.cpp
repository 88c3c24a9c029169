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

void put(std::map<std::string, MetricValue>& metrics, const std::string& name, std::optional<double> value,
         std::string reason) {
  const Metric* row = find_metric(name);
  metrics[name] = {
      .value = value, .predicted = {}, .unit = row ? std::string(row->unit) : "1", .reason = std::move(reason)};
}

}  // namespace fp8lab

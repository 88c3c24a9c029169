#include "harness/cli/plan/planned.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "harness/cell/subject_keys.h"
#include "harness/scenario/rules.h"

namespace fp8lab {
namespace {

/// The arms as results whose measured figures are the predicted ones. An arm that asks for more than the cell's
/// capacity ends out of memory.
ArmResults as_results(const Planned& plan) {
  constexpr std::string_view kMemory = "memory.";
  ArmResults out;
  for (const PlannedArm& arm : plan.arms) {
    const std::map<std::string, double>& figures = arm.estimate.figures;
    if (figures.empty()) continue;
    const auto peak = figures.find("memory.peak_bytes");
    const auto capacity = static_cast<double>(plan.cell.config.capacity);
    const bool exhausted = capacity > 0 && peak != figures.end() && peak->second > capacity;
    ArmResult& result = out[arm.arm];
    if (exhausted) result.status = "out_of_memory";
    for (const auto& [name, value] : figures) {
      if (!exhausted) result.metrics[name].value = value;
      if (name.starts_with(kMemory)) result.metrics["memory.predicted_" + name.substr(kMemory.size())].value = value;
    }
  }
  return out;
}

/// A prediction says nothing of how an arm ends, except that it has too little memory; and it always equals itself.
bool decides(const Expectation& expectation, const CellConfig& cell) {
  if (expectation.comparison == Comparison::kEnds) return expectation.status == "out_of_memory" && cell.capacity > 0;
  return !expectation.predicted;
}

void judge_expectations(Planned& plan) {
  const ArmResults results = as_results(plan);
  for (const Expectation& expectation : plan.cell.expect)
    for (Gate& gate : judge(plan.cell.config, results, {expectation}).gates)
      if (gate.pass && decides(expectation, plan.cell.config))
        plan.gates.push_back(std::move(gate));
      else
        ++plan.open;
}

FitSearch fits_of(const CellConfig& cell, std::int64_t capacity, const Vocabulary& vocabulary) {
  // Without attention, ranks that split sequences are ranks with smaller micro-batches.
  const bool splits = vocabulary.attends && vocabulary.attends(cell.model.layer);
  return cheapest_fits(cell, capacity, [&](const CellConfig& changed) {
    return (splits || changed.context_parallel == cell.context_parallel) && broken_rules(changed, vocabulary).empty();
  });
}

}  // namespace

bool Planned::fails(bool fits) const {
  const bool ends_otherwise = std::any_of(cell.expect.begin(), cell.expect.end(), [](const Expectation& e) {
    return e.comparison == Comparison::kEnds && e.side == Side::kAfter;
  });
  return std::any_of(gates.begin(), gates.end(), [](const Gate& gate) { return !*gate.pass; }) ||
         ((fits || !ends_otherwise) && std::any_of(arms.begin(), arms.end(), [](const PlannedArm& arm) {
            return arm.arm == Arm::kAfter && (!arm.cannot_run.empty() || (arm.spare && *arm.spare < 0));
          }));
}

bool is_tight(std::int64_t peak, std::int64_t capacity) {
  constexpr std::int64_t kSegment = std::int64_t{24} << 20;  // 20 MiB for large blocks, 2 MiB each for small ones
  return capacity >= peak && capacity - peak < std::max(peak / 4 * 3, kSegment);
}

Planned planned(const PlannedCell& cell, const Capacity& capacity, const std::vector<Arm>& arms,
                const Program& program) {
  Planned plan{cell, capacity.bytes > 0 ? capacity.bytes : cell.config.capacity, {}, {}, 0};
  plan.of_library = !program.finds_fits || is_library(cell.config);
  // Predictions need no device, so cells of a GPU are planned on machines without one.
  if (!cell.skip_reason.empty() && !cell.skipped_here) return plan;
  CellConfig lasting = cell.config;
  if (capacity.bytes > 0 && lasting.training.optimizer != Optimizer::kNone)
    lasting.training.steps = std::max<std::int64_t>(lasting.training.steps, 2);
  const auto& quantizes = program.vocabulary().quantizes;
  for (const Arm arm : arms) {
    PlannedArm out{arm, {}, {}, "", "", {}, {}};
    if (!capacity.fp8 && arm != Arm::kBf16 && quantizes(cell.config.training.recipe))
      out.cannot_run = fmt::format("{} has no FP8 matrix products", capacity.gpu);
    try {
      if (program.estimate)
        out.estimate = program.estimate(cell.config, arm);
      else if (program.predict)
        out.estimate.figures = program.predict(cell.config, arm);
      if (out.estimate.figures.empty())
        out.reason = is_library(cell.config) ? "no closed form of a library; --as LIBRARY@RELEASE predicts it"
                                             : "no closed form";
      if (program.estimate && lasting.training.steps != cell.config.training.steps)
        out.lasting = program.estimate(lasting, arm);
    } catch (const Error& error) {
      out.reason = error.what();
    }
    const std::map<std::string, double>& figures = (out.lasting ? *out.lasting : out.estimate).figures;
    const auto peak = figures.find("memory.peak_bytes");
    if (plan.capacity > 0 && peak != figures.end()) out.spare = plan.capacity - static_cast<std::int64_t>(peak->second);
    if (arm == Arm::kAfter && program.estimate && program.finds_fits && out.spare && *out.spare < 0 &&
        out.cannot_run.empty())
      out.search = fits_of(lasting, plan.capacity, program.vocabulary());
    plan.arms.push_back(std::move(out));
  }
  judge_expectations(plan);
  return plan;
}

}  // namespace fp8lab

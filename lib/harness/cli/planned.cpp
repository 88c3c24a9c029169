#include "harness/cli/planned.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cell/metrics.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/spelling.h"
#include "harness/cell/subject_keys.h"
#include "harness/cell/units.h"
#include "harness/cli/plan_tables.h"
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

void set_key(CellConfig& cell, const std::string& setting, const Vocabulary& vocabulary) {
  const std::size_t sign = setting.find('=');
  const std::string name = setting.substr(0, sign);
  const std::string text = sign == std::string::npos ? "" : setting.substr(sign + 1);
  const Key* key = find_key(name);
  if (!key || sign == std::string::npos)
    fail(fmt::format("--set: `{}` is not KEY=VALUE with a key of scenarios.{}", quotable(setting),
                     key ? "" : suggestion(name, axis_names())));
  const auto value = value_of(*key, text, vocabulary);
  if (!value) fail(fmt::format("--set: {} must be {}", key->path, expected_of(*key, vocabulary)));
  key->set(cell, *value);
}

}  // namespace

bool Planned::fails(bool fits) const {
  const bool ends_otherwise = std::any_of(cell.expect.begin(), cell.expect.end(), [](const Expectation& e) {
    return e.comparison == Comparison::kEnds && e.side == Side::kAfter;
  });
  return std::any_of(gates.begin(), gates.end(), [](const Gate& gate) { return !*gate.pass; }) ||
         ((fits || !ends_otherwise) && std::any_of(arms.begin(), arms.end(), [](const PlannedArm& arm) {
            return arm.arm == Arm::kAfter && arm.spare && *arm.spare < 0;
          }));
}

Planned planned(const PlannedCell& cell, std::int64_t capacity, const std::vector<Arm>& arms, const Program& program) {
  Planned plan{cell, capacity > 0 ? capacity : cell.config.capacity, {}, {}, 0};
  // Predictions need no device, so cells of a GPU are planned on machines without one.
  if (!cell.skip_reason.empty() && !cell.skipped_here) return plan;
  CellConfig lasting = cell.config;
  if (capacity > 0 && lasting.training.optimizer != Optimizer::kNone)
    lasting.training.steps = std::max<std::int64_t>(lasting.training.steps, 2);
  for (const Arm arm : arms) {
    PlannedArm out{arm, {}, {}, "", {}, false, {}};
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
    if (arm == Arm::kAfter && program.estimate && program.finds_fits && out.spare && *out.spare < 0) {
      out.searched = true;
      out.fits = cheapest_fits(lasting, plan.capacity, [&](const CellConfig& changed) {
        return broken_rules(changed, program.vocabulary()).empty();
      });
    }
    plan.arms.push_back(std::move(out));
  }
  judge_expectations(plan);
  return plan;
}

Capacity capacity_of(const PlanRequest& request) {
  Capacity out;
  const auto gib = [](std::int64_t bytes) { return short_figure(static_cast<double>(bytes), "B"); };
  if (!request.gpu.empty()) {
    const KnownGpu& gpu = find_gpu(request.gpu);
    out = {gpu.usable_bytes(),
           fmt::format("{} of {} ({} less {} GiB for the CUDA context, libraries and NCCL)", gib(gpu.usable_bytes()),
                       gpu.name, gib(gpu.mebibytes << 20), kReservedBytes >> 30),
           std::string(gpu.arch), gpu.fp8};
  }
  if (request.capacity.empty()) return out;
  out.bytes = parse_bytes("--capacity", request.capacity);
  out.words = gib(out.bytes);
  return out;
}

ModelPlan model_plan(const PlanRequest& request, const Capacity& capacity, const Vocabulary& vocabulary) {
  const KnownModel& known = find_model(request.model);
  ModelPlan out;
  out.ranks = request.ranks.empty() ? std::vector{8, 64, 512, 4096} : request.ranks;
  CellConfig base = known.cell();
  base.arch = capacity.arch;
  std::optional<bool> quantized_weights;  // where --set chooses rows by it
  for (const std::string& setting : request.settings) {
    set_key(base, setting, vocabulary);
    if (setting.starts_with("training.recipe=") || setting.starts_with("ranks="))
      fail(fmt::format("plan: --set {}: the table has {}; choose them by {}", quotable(setting),
                       setting.starts_with("ranks") ? "a column for each number of ranks" : "rows for each recipe",
                       setting.starts_with("ranks") ? "--ranks" : "--recipe"));
    if (setting.starts_with("training.quantized_weights=")) quantized_weights = base.training.quantized_weights;
  }
  std::vector<std::string> recipes = request.recipes;
  if (recipes.empty() && !capacity.fp8) recipes = {"bf16"};
  if (recipes.empty())
    for (const Term& recipe : vocabulary.recipes)
      if (recipe.name != "mxfp8" || base.arch == "blackwell") recipes.push_back(recipe.name);
  const Key& key = *find_key("training.recipe");
  for (const std::string& recipe : recipes) {
    const auto value = value_of(key, recipe, vocabulary);
    if (!value)
      fail(fmt::format("--recipe: `{}` is not known.{}", quotable(recipe), suggestion(recipe, key.words(vocabulary))));
    for (const bool quantized : {false, true}) {
      if (quantized && !vocabulary.quantizes(recipe)) continue;
      if (vocabulary.quantizes(recipe) && quantized_weights.value_or(quantized) != quantized) continue;
      for (const int ranks : out.ranks) {
        PlannedCell cell;
        cell.config = base;
        key.set(cell.config, *value);
        cell.config.training.quantized_weights = quantized;
        cell.config.ranks = ranks;
        cell.config.gather_ahead = base.gather_ahead && is_sharded(cell.config);
        cell.config.id =
            fmt::format("{}/ranks={},recipe={},quantized_weights={}", known.name, ranks, recipe, quantized);
        cell.title = recipe + (quantized ? ", FP8 weights" : "");
        if (const auto rules = broken_rules(cell.config, vocabulary); !rules.empty())
          fail(fmt::format("plan: {}: {}", rules.front().key, rules.front().rule));
        out.cells.push_back(std::move(cell));
      }
    }
  }
  const auto text_of = [&](const char* path) { return to_text(find_key(path)->get(base)); };
  out.heading = fmt::format(
      "{}: {} layers, hidden {}, vocabulary {}; {} of {} tokens a rank and micro-batch\n"
      "optimizer {}, master weights {}, moments {}; FSDP over all ranks{}; --set KEY=VALUE changes any other key\n{}\n"
      "Figures are the closed forms that runs are compared with, byte by byte.\n",
      known.name, base.model.layers, base.model.hidden, base.model.vocabulary,
      counted(static_cast<std::size_t>(base.model.batch), "sequence"), base.model.seq, text_of("training.optimizer"),
      text_of("training.master_weights"), text_of("training.moments"),
      base.gather_ahead ? ", each layer gathered while the one before it computes" : "",
      capacity.bytes > 0 ? "Memory of a rank: " + capacity.words : "Give --gpu or --capacity to see what fits.");
  return out;
}

}  // namespace fp8lab

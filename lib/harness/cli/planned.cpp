#include "harness/cli/planned.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/cli/plan_tables.h"
#include "harness/scenario/rules.h"

namespace fp8lab {
namespace {

std::optional<BrokenRule> broken(const CellConfig& cell, const Vocabulary& vocabulary) {
  std::optional<BrokenRule> rule = broken_general_rule(cell, vocabulary);
  if (!rule && vocabulary.broken_rule) rule = vocabulary.broken_rule(cell);
  return rule;
}

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

std::vector<Gate> judged(const Planned& plan) {
  const ArmResults results = as_results(plan);
  std::vector<Gate> gates;
  for (const Expectation& expectation : plan.cell.expect) {
    if (!decides(expectation, plan.cell.config)) continue;
    for (Gate& gate : judge(plan.cell.config, results, {expectation}).gates)
      if (gate.pass) gates.push_back(std::move(gate));
  }
  return gates;
}

void set_key(CellConfig& cell, LanguageModel& model, const std::string& setting, const Vocabulary& vocabulary) {
  const std::size_t sign = setting.find('=');
  const std::string name = setting.substr(0, sign);
  const std::string text = sign == std::string::npos ? "" : setting.substr(sign + 1);
  if (name == "loss_chunks") {
    const auto chunks = integer(text);
    if (!chunks || *chunks < 1 || *chunks > 4096) fail("--set: loss_chunks must be an integer from 1 to 4096");
    model.loss_chunks = *chunks;
    return;
  }
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
  return std::any_of(gates.begin(), gates.end(), [](const Gate& gate) { return !*gate.pass; }) ||
         (fits && std::any_of(arms.begin(), arms.end(), [](const PlannedArm& arm) {
            return arm.arm == Arm::kAfter && arm.spare && *arm.spare < 0;
          }));
}

Planned planned(const PlannedCell& cell, std::int64_t capacity, const LanguageModel* model, const Program& program) {
  Planned plan{cell, capacity > 0 ? capacity : cell.config.capacity, {}, {}};
  if (!cell.skip_reason.empty()) return plan;
  const std::vector<Arm> arms = model ? std::vector{Arm::kAfter} : arms_of(cell, program.vocabulary());
  for (const Arm arm : arms) {
    PlannedArm out{arm, {}, "", {}, false, {}};
    try {
      if (program.estimate)
        out.estimate = program.estimate(cell.config, arm, model);
      else if (program.predict)
        out.estimate.figures = program.predict(cell.config, arm);
      if (out.estimate.figures.empty()) out.reason = "no closed form";
    } catch (const Error& error) {
      out.reason = error.what();
    }
    const auto peak = out.estimate.figures.find("memory.peak_bytes");
    if (plan.capacity > 0 && peak != out.estimate.figures.end())
      out.spare = plan.capacity - static_cast<std::int64_t>(peak->second);
    if (arm == Arm::kAfter && program.estimate && out.spare && *out.spare < 0) {
      out.searched = true;
      out.fits = cheapest_fits(cell.config, model, plan.capacity,
                               [&](const CellConfig& changed) { return !broken(changed, program.vocabulary()); });
    }
    plan.arms.push_back(std::move(out));
  }
  plan.gates = judged(plan);
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
  out.model.vocabulary = known.vocabulary;
  CellConfig base = known.cell();
  base.arch = capacity.arch;
  for (const std::string& setting : request.settings) set_key(base, out.model, setting, vocabulary);
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
      for (const int ranks : out.ranks) {
        PlannedCell cell;
        cell.config = base;
        key.set(cell.config, *value);
        cell.config.training.quantized_weights = quantized;
        cell.config.ranks = ranks;
        cell.config.id =
            fmt::format("{}/ranks={},recipe={},quantized_weights={}", known.name, ranks, recipe, quantized);
        cell.title = recipe + (quantized ? ", weights in eight bits" : "");
        if (const auto rule = broken(cell.config, vocabulary)) fail(fmt::format("plan: {}: {}", rule->key, rule->rule));
        out.cells.push_back(std::move(cell));
      }
    }
  }
  out.heading = fmt::format(
      "{}: {} layers, hidden {}, vocabulary {}; {} of {} tokens a rank and micro-batch; FSDP over all ranks\n{}\n"
      "Layers, sharding and optimizer: the closed forms that runs are compared with, byte by byte. Embedding, last "
      "norm,\n"
      "head and loss (cross entropy in FP32, in {}): closed forms that no run verifies.\n",
      known.name, base.model.layers, base.model.hidden, known.vocabulary,
      counted(static_cast<std::size_t>(base.model.batch), "sequence"), base.model.seq,
      capacity.bytes > 0 ? "Memory of a rank: " + capacity.words : "Give --gpu or --capacity to see what fits.",
      counted(static_cast<std::size_t>(out.model.loss_chunks), "piece"));
  return out;
}

}  // namespace fp8lab

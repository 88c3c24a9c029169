#include "harness/cli/plan/planned.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/subject_keys.h"
#include "harness/scenario/rules.h"

namespace fp8lab {
namespace {

/// The arms as results whose measured figures are the predicted ones. An arm that needs more than the cell's
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

/// A prediction does not contain how an arm ends, except that it has too little memory; and it always equals itself.
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

/// The live bytes at PyTorch's peak; nothing for a cell that is not covered.
std::optional<std::int64_t> torch_peak_of(const CellConfig& cell, const Program& program) {
  if (!program.torch) return std::nullopt;
  try {
    return static_cast<std::int64_t>(program.torch(cell, Arm::kAfter).estimate.figures.at("memory.peak_bytes"));
  } catch (const Error&) {
    return std::nullopt;
  }
}

FitSearch fits_of(const CellConfig& cell, std::int64_t capacity, bool with_torch, const Program& program) {
  const Vocabulary& vocabulary = program.vocabulary();
  // Without attention, ranks that split sequences are ranks with smaller micro-batches.
  const bool splits = vocabulary.attends && vocabulary.attends(cell.model.layer);
  // A change for which PyTorch has no figures any more does not fit.
  TorchPeak torch;
  if (with_torch && torch_peak_of(cell, program))
    torch = [&](const CellConfig& changed) {
      return torch_peak_of(changed, program).value_or(std::numeric_limits<std::int64_t>::max());
    };
  return cheapest_fits(
      cell, capacity,
      [&](const CellConfig& changed) {
        return (splits || changed.context_parallel == cell.context_parallel) &&
               broken_rules(changed, vocabulary).empty();
      },
      torch);
}

std::optional<std::int64_t> spare_of(const Estimate& estimate, std::int64_t capacity) {
  const auto peak = estimate.figures.find("memory.peak_bytes");
  if (capacity == 0 || peak == estimate.figures.end()) return std::nullopt;
  return capacity - static_cast<std::int64_t>(peak->second);
}

void add_torch(const CellConfig& lasting, Arm arm, const Program& program, PlannedArm& out) {
  if (!program.torch) return;
  try {
    out.torch = program.torch(lasting, arm);
  } catch (const Error& error) {
    out.torch_reason = error.what();
  }
}

/// The figures of an arm, or why there are none.
PlannedArm estimated(const CellConfig& cell, const CellConfig& lasting, Arm arm, const Program& program) {
  PlannedArm out;
  out.arm = arm;
  if (is_script(cell)) {
    out.reason =
        "the program builds a model of its own; `fp8lab watch -o OUT` sees which, and `fp8lab plan OUT` plans it";
    return out;
  }
  try {
    if (program.estimate)
      out.estimate = program.estimate(cell, arm);
    else if (program.predict)
      out.estimate.figures = program.predict(cell, arm);
    if (out.estimate.figures.empty())
      out.reason =
          is_library(cell) ? "no closed form of a library; --as LIBRARY@RELEASE predicts it" : "no closed form";
    if (program.estimate && lasting.training.steps != cell.training.steps) out.lasting = program.estimate(lasting, arm);
    const bool own = program.estimate && program.estimated_library.empty() && !is_library(cell);
    if (own && arm != Arm::kBefore && !out.estimate.figures.empty()) add_torch(lasting, arm, program, out);
  } catch (const Error& error) {
    out.reason = error.what();
  }
  return out;
}

}  // namespace

bool Planned::fails(bool fits) const {
  const bool ends_otherwise = std::any_of(cell.expect.begin(), cell.expect.end(), [](const Expectation& e) {
    return e.comparison == Comparison::kEnds && e.side == Side::kAfter;
  });
  return std::any_of(gates.begin(), gates.end(), [](const Gate& gate) { return !*gate.pass; }) ||
         ((fits || !ends_otherwise) && std::any_of(arms.begin(), arms.end(), [&](const PlannedArm& arm) {
            return arm.arm == Arm::kAfter &&
                   (!arm.cannot_run.empty() || (arm.spare && *arm.spare < 0) || (fits && arm.torch_lacks_memory()));
          }));
}

namespace {

/// What a rank sends to the other ranks that share a layer's experts, if each of them gets equally many rows.
double sent_to_experts(const CellConfig& cell, const Estimate& estimate) {
  const auto all = estimate.figures.find("traffic.all_to_all_bytes");
  const double ranks = cell.expert_parallel;
  return all == estimate.figures.end() ? 0.0 : all->second / ranks * (ranks - 1) / ranks;
}

/// What a rank receives and sends in all-reduces of its shards of gradients: a reduction to parts and a gather of them.
double moved_between_replicas(const CellConfig& cell, const Estimate& estimate) {
  const auto all = estimate.figures.find("traffic.all_reduce_bytes");
  const double replicas = mesh_of(cell).replicas;
  return replicas == 1 || all == estimate.figures.end() ? 0.0 : (replicas - 1) / replicas * all->second;
}

}  // namespace

std::optional<MovedBytes> moved_bytes(const CellConfig& cell, const Estimate& estimate) {
  if (is_replicated(cell)) {
    const auto all = estimate.figures.find("traffic.all_reduce_bytes");
    if (all == estimate.figures.end()) return std::nullopt;
    // A reduction to parts and a gather of them.
    const double part = (static_cast<double>(cell.ranks) - 1) / static_cast<double>(cell.ranks) * all->second;
    return MovedBytes{part, part, 0.0};
  }
  if (estimate.moved) {
    const double of_replicas = moved_between_replicas(cell, estimate);
    return MovedBytes{estimate.moved->received + of_replicas, estimate.moved->sent + of_replicas,
                      sent_to_experts(cell, estimate)};
  }
  const auto gathered = estimate.figures.find("traffic.all_gather_bytes");
  const auto reduced = estimate.figures.find("traffic.reduce_scatter_bytes");
  if (gathered == estimate.figures.end() || reduced == estimate.figures.end()) return std::nullopt;
  const double shards = mesh_of(cell).shards, of_others = (shards - 1) / shards;
  return MovedBytes{of_others * gathered->second, of_others * reduced->second, 0.0};
}

bool is_tight(std::int64_t peak, std::int64_t capacity) {
  constexpr std::int64_t kSegment = std::int64_t{24} << 20;  // 20 MiB for large blocks, 2 MiB each for small ones
  return capacity >= peak && capacity - peak < std::max(peak / 4 * 3, kSegment);
}

Planned planned(const PlannedCell& cell, const Capacity& capacity, const std::vector<Arm>& arms,
                const Program& program) {
  Planned plan;
  plan.cell = cell;
  plan.capacity = capacity.bytes > 0 ? capacity.bytes : cell.config.capacity;
  plan.library = !program.estimated_library.empty() ? program.estimated_library
                 : is_library(cell.config)          ? cell.config.subject
                                                    : "";
  plan.asks_torch = program.torch != nullptr;
  // Predictions need no device, so cells of a GPU are planned on machines without one.
  if (!cell.skip_reason.empty() && !cell.skipped_here) return plan;
  CellConfig lasting = cell.config;
  if (capacity.bytes > 0 && lasting.training.optimizer != Optimizer::kNone)
    lasting.training.steps = std::max<std::int64_t>(lasting.training.steps, 2);
  const auto& quantizes = program.vocabulary().quantizes;
  for (const Arm arm : arms) {
    PlannedArm out = estimated(cell.config, lasting, arm, program);
    if (!capacity.fp8 && arm != Arm::kBf16 && quantizes(cell.config.training.recipe))
      out.cannot_run = fmt::format("{} has no FP8 matrix products", capacity.gpu);
    out.spare = spare_of(out.lasting ? *out.lasting : out.estimate, plan.capacity);
    if (capacity.bytes > 0 && out.torch) out.torch_spare = spare_of(out.torch->estimate, plan.capacity);
    const bool lacks_memory = (out.spare && *out.spare < 0) || out.torch_lacks_memory();
    if (arm == Arm::kAfter && program.estimate && plan.library.empty() && lacks_memory && out.cannot_run.empty())
      out.search = fits_of(lasting, plan.capacity, out.torch_spare.has_value(), program);
    plan.arms.push_back(std::move(out));
  }
  const auto of_bf16 = std::ranges::find(plan.arms, Arm::kBf16, &PlannedArm::arm);
  if (of_bf16 != plan.arms.end())
    plan.bf16 = *of_bf16;
  else if (quantizes(cell.config.training.recipe))
    plan.bf16 = estimated(cell.config, lasting, Arm::kBf16, program);
  if (plan.bf16 && plan.bf16->estimate.figures.empty()) plan.bf16.reset();
  judge_expectations(plan);
  return plan;
}

}  // namespace fp8lab

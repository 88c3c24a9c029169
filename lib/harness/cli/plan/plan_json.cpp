#include <cmath>
#include <nlohmann/json.hpp>

#include "harness/cell/units.h"
#include "harness/cli/plan/plan_fit_text.h"
#include "harness/cli/plan/plan_text.h"
#include "harness/subjects/torch_memory.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

/// Integers without a fraction.
Json number(double value) { return Json::parse(shortest(value)); }

void add_peak(const Estimate& estimate, Json& out) {
  if (estimate.peak_phase.empty()) return;
  out["peak_phase"] = estimate.peak_phase;
  out["peak_by_owner"] = Json::object();
  for (const auto& [owner, bytes] : estimate.peak_by_owner) out["peak_by_owner"][std::string(owner)] = bytes;
}

Json figures_json(const Estimate& estimate) {
  Json out = Json::object();
  for (const auto& [name, value] : estimate.figures) out[name] = number(value);
  return out;
}

/// PyTorch's figures; null if there are none.
Json torch_json(const Planned& plan, const PlannedArm& arm) {
  if (!arm.torch) return nullptr;
  const Estimate& estimate = arm.torch->estimate;
  Json out{{"figures_of", arm.torch->release}, {"predicted", figures_json(estimate)}};
  add_peak(estimate, out);
  if (!arm.torch_spare) return out;
  out["spare_bytes"] = *arm.torch_spare;
  const TorchFit fit = torch_fit_of(estimate, arm.torch->release, plan.capacity);
  out["fits"] = !fit.fits ? Json(false) : fit.is_sure ? Json(true) : Json(nullptr);  // null: it may not fit
  return out;
}

/// The arm's figures less the figures of the bf16 arm.
Json differences_json(const Planned& plan, const PlannedArm& arm) {
  Json out = Json::object();
  for (const auto& [name, value] : arm.estimate.figures)
    if (const auto of_bf16 = plan.bf16->estimate.figures.find(name); of_bf16 != plan.bf16->estimate.figures.end())
      out[name] = number(value - of_bf16->second);
  return out;
}

Json search_json(const PlannedArm& arm, std::int64_t capacity) {
  Json out = Json::array();
  for (const Fit& fit : arm.search->fits) {
    Json changes = Json::array();
    for (const FitChange& change : fit.changes)
      changes.push_back(
          {{"key", change.key}, {"value", change.value}, {"price", name(change.price)}, {"cost", change.cost}});
    Json entry{{"changes", changes},
               {"figures_of", "own"},
               {"peak_bytes", fit.peak.own},
               {"reserved_may_exceed_capacity", is_tight(fit.peak.own, capacity)}};
    if (fit.peak.torch > 0) entry["pytorch"] = {{"figures_of", arm.torch->release}, {"peak_bytes", fit.peak.torch}};
    out.push_back(entry);
  }
  return out;
}

Json json_of(const Planned& plan, const PlannedArm& arm) {
  Json out{{"figures_of", plan.figures_of()},
           {"predicted", figures_json(arm.estimate)},
           {"reason", arm.reason.empty() ? Json(nullptr) : Json(arm.reason)}};
  for (const auto& [name, value] : arm.measured) out["measured"][name] = number(value);
  add_peak(arm.estimate, out);
  if (const auto moved = moved_bytes(plan.cell.config, arm.estimate))
    out["moved_by_rank"] = {{"all_gather_received_bytes", number(moved->received)},
                            {"reduce_scatter_sent_bytes", number(moved->sent)},
                            {"all_to_all_sent_bytes", number(moved->exchanged)}};
  if (plan.bf16 && arm.arm == Arm::kAfter) out["less_bf16"] = differences_json(plan, arm);
  if (Json torch = torch_json(plan, arm); !torch.is_null()) out["pytorch"] = torch;
  if (!arm.torch_reason.empty()) out["pytorch_reason"] = arm.torch_reason;
  if (arm.estimate.fp8_weights > 0) {
    out["fp8_weights"] = arm.estimate.fp8_weights;
    out["refused_weights"] = arm.estimate.refused_weights;
  }
  if (!arm.cannot_run.empty()) out["cannot_run"] = arm.cannot_run;
  if (!arm.spare) return out;
  if (arm.lasting) out["peak_bytes_from_second_step"] = number(arm.lasting->figures.at("memory.peak_bytes"));
  out["capacity"] = plan.capacity;
  out["fits"] = arm.fits();
  out["reserved_may_exceed_capacity"] = fits_tightly(plan, arm);
  out["spare_bytes"] = *arm.spare;
  out["fits_with"] = arm.search ? search_json(arm, plan.capacity) : Json::array();
  if (arm.search) out["tried"] = arm.search->tried;
  return out;
}

Json json_of(const Planned& plan) {
  const CellConfig& cell = plan.cell.config;
  Json out{{"id", cell.id},          {"scenario", cell.scenario}, {"file", plan.cell.file},
           {"line", plan.cell.line}, {"device", cell.device},     {"ranks", cell.ranks},
           {"skip", nullptr},        {"arms", Json::object()},    {"expect", Json::array()}};
  if (!plan.cell.skip_reason.empty()) out["skip"] = plan.cell.skip_reason;
  for (const PlannedArm& arm : plan.arms) out["arms"][std::string(name(arm.arm))] = json_of(plan, arm);
  for (const Gate& gate : plan.gates)
    out["expect"].push_back({{"text", gate.text},
                             {"line", gate.line},
                             {"pass", *gate.pass},
                             {"figures_of", plan.figures_of()},
                             {"predicted", gate.observed ? Json(*gate.observed) : Json(nullptr)}});
  return out;
}

}  // namespace

std::string plans_json(const std::vector<Planned>& plans, const std::vector<std::string>& differs) {
  Json json = Json::array();
  for (const Planned& plan : plans) {
    json.push_back(json_of(plan));
    if (!differs.empty()) json.back()["differs"] = differs;
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fp8lab

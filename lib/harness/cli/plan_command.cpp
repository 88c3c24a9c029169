#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/cli/program.h"
#include "harness/cli/selection.h"
#include "harness/results/verdict.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;
using Figures = std::map<std::string, double>;

struct PlannedArm {
  Arm arm;
  Figures figures;
  std::string reason;  ///< why there are no figures
};

struct Plan {
  const PlannedCell& cell;
  std::vector<PlannedArm> arms;
};

Plan plan_of(const PlannedCell& cell, const Program& program) {
  Plan plan{cell, {}};
  if (!cell.skip_reason.empty()) return plan;
  for (const Arm arm : arms_of(cell, program.vocabulary())) {
    PlannedArm planned{arm, {}, ""};
    try {
      if (program.predict) planned.figures = program.predict(cell.config, arm);
      if (planned.figures.empty()) planned.reason = "no closed form";
    } catch (const Error& error) {
      planned.reason = error.what();
    }
    plan.arms.push_back(std::move(planned));
  }
  return plan;
}

constexpr std::array<std::string_view, 4> kColumns{"memory.peak_bytes", "memory.weight_bytes", "memory.retained_bytes",
                                                   "traffic.all_gather_bytes"};

/// A figure without its exact bytes, which are in the JSON.
std::string short_figure(double value, std::string_view unit) {
  const std::string text = figure(value, unit);
  return text.substr(0, text.find(" ("));
}

/// "  above the capacity of 131.3 GiB" if the arm asks for more than the device has at one moment. Below that an
/// allocator's rounding may still exhaust the device.
std::string above_capacity(const CellConfig& cell, const Figures& figures) {
  const auto peak = figures.find("memory.peak_bytes");
  const auto capacity = static_cast<double>(cell.capacity);
  if (cell.capacity == 0 || peak == figures.end() || peak->second <= capacity) return {};
  return fmt::format("  above the capacity of {}", short_figure(capacity, "B"));
}

std::string line_of(const CellConfig& cell, const PlannedArm& arm) {
  std::string out = fmt::format("  {:<7}", name(arm.arm));
  if (!arm.reason.empty()) return out + for_terminal(arm.reason) + "\n";
  for (const std::string_view column : kColumns) {
    const auto it = arm.figures.find(std::string(column));
    if (it != arm.figures.end())
      out += fmt::format(" {:>24}", short_figure(it->second, find_metric(column)->unit));
    else
      out += fmt::format(" {:>24}", "-");
  }
  return out + above_capacity(cell, arm.figures) + "\n";
}

Json json_of(const Plan& plan) {
  const CellConfig& cell = plan.cell.config;
  Json out{{"id", cell.id},         {"scenario", cell.scenario}, {"file", plan.cell.file}, {"line", plan.cell.line},
           {"device", cell.device}, {"ranks", cell.ranks},       {"skip", nullptr},        {"arms", Json::object()}};
  if (!plan.cell.skip_reason.empty()) out["skip"] = plan.cell.skip_reason;
  for (const PlannedArm& arm : plan.arms) {
    Json figures = Json::object();
    for (const auto& [name, value] : arm.figures) figures[name] = Json::parse(shortest(value));
    out["arms"][std::string(name(arm.arm))] = {{"predicted", figures},
                                               {"reason", arm.reason.empty() ? Json(nullptr) : Json(arm.reason)}};
  }
  return out;
}

}  // namespace

int plan_command(const RunRequest& request, const Program& program) {
  LoadedScenarios loaded = load_scenarios(find_scenario_files(request.paths), program.vocabulary());
  for (const ScenarioError& error : loaded.errors) report_error(error.what());
  if (!loaded.errors.empty()) return exit_code({.verdicts = {}, .bad_usage = true});
  select_cells(loaded.cells, request, program.vocabulary());
  std::string text;
  Json json = Json::array();
  std::size_t runs = 0, arms = 0;
  for (const PlannedCell& cell : loaded.cells) {
    const Plan plan = plan_of(cell, program);
    runs += cell.skip_reason.empty();
    arms += plan.arms.size();
    if (request.json) {
      json.push_back(json_of(plan));
      continue;
    }
    text += fmt::format("{}  ({}, {} {}){}\n", cell.config.id, cell.config.device, cell.config.ranks,
                        cell.config.ranks == 1 ? "rank" : "ranks",
                        cell.skip_reason.empty() ? "" : "  skipped: " + for_terminal(cell.skip_reason));
    for (const PlannedArm& arm : plan.arms) text += line_of(cell.config, arm);
  }
  if (loaded.cells.empty()) report_error(nothing_matches(request, program.vocabulary()));
  if (request.json) {
    text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  } else if (!loaded.cells.empty()) {
    std::string head = fmt::format("  {:<7}", "");
    for (const std::string_view column : kColumns) head += fmt::format(" {:>24}", column);
    text = fmt::format("Predicted, on rank 0:\n{}\n{}{}, {} of them run, {}\n", head, text,
                       counted(loaded.cells.size(), "cell"), runs, counted(arms, "arm"));
  }
  std::fputs(text.c_str(), stdout);
  return loaded.cells.empty() ? exit_code({}) : 0;
}

}  // namespace fp8lab

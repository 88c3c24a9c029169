#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cell/escape.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/cli/plan_tables.h"
#include "harness/cli/planned.h"
#include "harness/cli/program.h"
#include "harness/cli/selection.h"
#include "harness/subjects/memory_profile.h"
#include "harness/subjects/subjects.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kColumns{"memory.peak_bytes", "memory.weight_bytes", "memory.retained_bytes",
                                                   "traffic.all_gather_bytes"};

/// The most owners of a peak that a line names.
constexpr std::size_t kMostOwners = 4;

/// Bytes in one unit over all cells: "77.6 GiB".
std::string bytes_text(double value) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  return std::abs(value) >= 0.1 * kGiB ? fmt::format("{:.1f} GiB", value / kGiB) : short_figure(value, "B");
}

std::string line_of(const PlannedArm& arm) {
  std::string out = fmt::format("  {:<7}", name(arm.arm));
  if (!arm.reason.empty()) return out + for_terminal(arm.reason) + "\n";
  for (const std::string_view column : kColumns) {
    const auto it = arm.estimate.figures.find(std::string(column));
    if (it != arm.estimate.figures.end())
      out += fmt::format(" {:>24}", short_figure(it->second, find_metric(column)->unit));
    else
      out += fmt::format(" {:>24}", "-");
  }
  return out + "\n";
}

std::string owners_text(const Estimate& estimate) {
  std::string out;
  std::int64_t rest = 0;
  std::size_t number = 0;
  for (const auto& [owner, bytes] : estimate.peak_by_owner) {
    if (++number > kMostOwners)
      rest += bytes;
    else
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", bytes_text(static_cast<double>(bytes)), owner);
  }
  if (rest > 0) out += fmt::format(", {} other", bytes_text(static_cast<double>(rest)));
  return out.empty() ? "" : fmt::format("in {}: {}", estimate.peak_phase, out);
}

std::string changes_text(const Fit& fit) {
  std::string changes, costs;
  for (const FitChange& change : fit.changes) {
    changes += fmt::format("{}{}={}", changes.empty() ? "" : ", ", change.key, change.value);
    costs += fmt::format("{}{}", costs.empty() ? "" : "; ", change.cost);
  }
  return fmt::format("{}: {} ({})", changes, bytes_text(static_cast<double>(fit.peak_bytes)), costs);
}

/// Whether the arm fits, what its peak consists of, and what makes it fit.
std::string fit_text(const PlannedArm& arm, std::int64_t capacity, const std::string& indent) {
  if (!arm.spare) return "";
  const auto spare = static_cast<double>(*arm.spare);
  const std::string of = bytes_text(static_cast<double>(capacity));
  std::string out = indent + (spare >= 0 ? fmt::format("fits {} with {} to spare", of, bytes_text(spare))
                                         : fmt::format("does not fit {}: {} too much", of, bytes_text(-spare)));
  if (arm.lasting)
    out += fmt::format(" from the second step on, with the optimizer's state: {}",
                       bytes_text(arm.lasting->figures.at("memory.peak_bytes")));
  const std::string owners = owners_text(arm.lasting ? *arm.lasting : arm.estimate);
  out += owners.empty() ? "\n" : fmt::format("; the peak is {}\n", owners);
  for (const Fit& fit : arm.fits) out += fmt::format("{}  fits with {}\n", indent, changes_text(fit));
  if (spare < 0 && arm.searched && arm.fits.empty())
    out += indent + "  nothing that was tried makes it fit, up to 64 times the ranks among it\n";
  return out;
}

/// Which of its weights are not FP8, though the cell asks for it.
std::string refused_text(const PlannedArm& arm, const std::string& indent) {
  if (arm.estimate.refused_weights == 0) return "";
  return fmt::format("{}{} of {} stay in high precision{}\n", indent, arm.estimate.refused_weights,
                     counted(static_cast<std::size_t>(arm.estimate.fp8_weights), "FP8 weight"),
                     arm.arm == Arm::kBefore ? "" : ": over these ranks, shards would cut their blocks");
}

std::string gate_text(const Gate& gate) {
  const Metric* metric = find_metric(gate.metric);
  const std::string_view unit = metric ? metric->unit : "1";
  return fmt::format("  expects {}: predicted {}\n", for_terminal(gate.text),
                     gate.observed ? figure(*gate.observed, unit) : gate.detail);
}

Json json_of(const PlannedArm& arm, std::int64_t capacity) {
  Json figures = Json::object();
  for (const auto& [name, value] : arm.estimate.figures) figures[name] = Json::parse(shortest(value));
  Json out{{"predicted", figures}, {"reason", arm.reason.empty() ? Json(nullptr) : Json(arm.reason)}};
  if (!arm.estimate.peak_phase.empty()) {
    out["peak_phase"] = arm.estimate.peak_phase;
    out["peak_by_owner"] = Json::object();
    for (const auto& [owner, bytes] : arm.estimate.peak_by_owner) out["peak_by_owner"][std::string(owner)] = bytes;
  }
  if (arm.estimate.fp8_weights > 0) {
    out["fp8_weights"] = arm.estimate.fp8_weights;
    out["refused_weights"] = arm.estimate.refused_weights;
  }
  if (!arm.spare) return out;
  if (arm.lasting) out["peak_bytes_from_second_step"] = arm.lasting->figures.at("memory.peak_bytes");
  out["capacity"] = capacity;
  out["fits"] = *arm.spare >= 0;
  out["spare_bytes"] = *arm.spare;
  out["fits_with"] = Json::array();
  for (const Fit& fit : arm.fits) {
    Json changes = Json::array();
    for (const FitChange& change : fit.changes)
      changes.push_back({{"key", change.key}, {"value", change.value}, {"cost", change.cost}});
    out["fits_with"].push_back({{"changes", changes}, {"peak_bytes", fit.peak_bytes}});
  }
  return out;
}

Json json_of(const Planned& plan) {
  const CellConfig& cell = plan.cell.config;
  Json out{{"id", cell.id},          {"scenario", cell.scenario}, {"file", plan.cell.file},
           {"line", plan.cell.line}, {"device", cell.device},     {"ranks", cell.ranks},
           {"skip", nullptr},        {"arms", Json::object()},    {"expect", Json::array()}};
  if (!plan.cell.skip_reason.empty()) out["skip"] = plan.cell.skip_reason;
  for (const PlannedArm& arm : plan.arms) out["arms"][std::string(name(arm.arm))] = json_of(arm, plan.capacity);
  for (const Gate& gate : plan.gates)
    out["expect"].push_back({{"text", gate.text},
                             {"line", gate.line},
                             {"pass", *gate.pass},
                             {"predicted", gate.observed ? Json(*gate.observed) : Json(nullptr)}});
  return out;
}

/// One line: which rows of a model's plan fit over the fewest ranks, and the cheapest change with which the others do.
std::string answer_text(const std::vector<Planned>& plans, const ModelPlan& model) {
  std::size_t rows = 0, fitting = 0, mended = 0;
  const Planned* best = nullptr;  // of those that do not fit, the one whose cheapest change leaves the smallest peak
  const Planned* smallest = nullptr;  // of those that fit
  for (std::size_t i = 0; i < plans.size(); i += model.ranks.size()) {
    const PlannedArm& arm = plans[i].arms.front();
    if (!arm.spare) continue;
    ++rows;
    if (*arm.spare >= 0) {
      ++fitting;
      if (!smallest || *arm.spare > *smallest->arms.front().spare) smallest = &plans[i];
      continue;
    }
    if (arm.fits.empty()) continue;
    ++mended;
    if (!best || arm.fits.front().peak_bytes < best->arms.front().fits.front().peak_bytes) best = &plans[i];
  }
  if (rows == 0) return "";
  const std::string over = counted(static_cast<std::size_t>(model.ranks.front()), "rank");
  const std::string recipes = rows == 1 ? "" : fmt::format(", by {} of {} recipes", fitting, rows);
  if (fitting == rows) return fmt::format("Fits over {}.\n", over);
  if (smallest) {
    const std::int64_t peak = smallest->capacity - *smallest->arms.front().spare;
    std::string out = fmt::format("Fits over {}{}; the smallest peak is that of {}: {}", over, recipes,
                                  smallest->cell.title, bytes_text(static_cast<double>(peak)));
    if (best)
      out += fmt::format("; {}{} {} {}",
                         mended == 1               ? ""
                         : mended + fitting < rows ? fmt::format("{} more fit with a change, ", mended)
                                                   : "the others fit with a change, ",
                         best->cell.title, mended == 1 ? "fits with" : "with",
                         changes_text(best->arms.front().fits.front()));
    return out + ".\n";
  }
  std::string out = fmt::format("Does not fit over {} as it is", over);
  if (best) {
    const std::string others = mended < rows ? fmt::format("{} of {} recipes fit", mended, rows)
                               : rows > 1    ? "every recipe fits"
                                             : "fits";
    const std::string under =
        rows > 1 ? fmt::format(" with a change; the smallest peak is that of {},", best->cell.title) : "";
    out += fmt::format("; {}{} with {}", others, under, changes_text(best->arms.front().fits.front()));
  }
  return out + ".\n";
}

/// Peaks as a table, a row a recipe, a column a number of ranks; and whether each row fits over the fewest ranks, rows
/// of one answer together.
std::string model_text(const std::vector<Planned>& plans, const ModelPlan& model) {
  std::string out = answer_text(plans, model) + model.heading;
  std::string head = fmt::format("{:<36}", "peak of a rank, by ranks");
  std::vector<std::pair<std::string, std::string>> answers;  // rows, and what they have in common
  bool some_refuse = false;
  for (const int ranks : model.ranks) head += fmt::format(" {:>12} ", ranks);
  out += head + "\n";
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const bool first = i % model.ranks.size() == 0;
    const PlannedArm& arm = plans[i].arms.front();
    const auto peak = arm.estimate.figures.find("memory.peak_bytes");
    if (first) out += fmt::format("{}{:<36}", i == 0 ? "" : "\n", plans[i].cell.title);
    const std::string text = peak == arm.estimate.figures.end() ? "-" : bytes_text(peak->second);
    const bool exceeds = arm.spare && *arm.spare < 0, refuses = arm.estimate.refused_weights > 0;
    out += fmt::format(" {:>13}", text + (exceeds && refuses ? " !*" : exceeds ? " ! " : refuses ? " * " : "   "));
    some_refuse = some_refuse || refuses;
    if (!first) continue;
    std::string answer =
        arm.reason.empty() ? fit_text(arm, plans[i].capacity, "  ") : fmt::format("  {}\n", arm.reason);
    const auto same = std::ranges::find(answers, answer, &std::pair<std::string, std::string>::second);
    if (same == answers.end())
      answers.emplace_back(plans[i].cell.title, std::move(answer));
    else
      same->first += "; " + plans[i].cell.title;
  }
  out += "\n";
  if (out.find(" !") != std::string::npos) out += "(!: does not fit)\n";
  if (some_refuse) out += "(*: FP8 weights stay in high precision where shards would cut their blocks)\n";
  if (plans.empty() || plans.front().capacity == 0) return out;
  out += fmt::format("\nOver {}:\n", counted(static_cast<std::size_t>(model.ranks.front()), "rank"));
  for (const auto& [rows, answer] : answers) out += rows + "\n" + answer;
  return out;
}

std::string why_not_run(const PlannedCell& cell) {
  if (cell.skip_reason.empty()) return "";
  return fmt::format("  {}: {}", cell.skipped_here ? "not run here" : "skipped", for_terminal(cell.skip_reason));
}

std::string scenario_text(const std::vector<Planned>& plans) {
  std::string text = fmt::format("Predicted, on rank 0:\n  {:<7}", "");
  for (const std::string_view column : kColumns) text += fmt::format(" {:>24}", column);
  text += "\n";
  std::size_t runs = 0, arms = 0, predicted = 0, hold = 0, fail = 0, open = 0;
  for (const Planned& plan : plans) {
    const CellConfig& cell = plan.cell.config;
    runs += plan.cell.skip_reason.empty();
    arms += plan.arms.size();
    predicted += static_cast<std::size_t>(
        std::ranges::count_if(plan.arms, [](const PlannedArm& arm) { return !arm.estimate.figures.empty(); }));
    text += fmt::format("{}  ({}, {} {}){}\n", cell.id, cell.device, cell.ranks, cell.ranks == 1 ? "rank" : "ranks",
                        why_not_run(plan.cell));
    for (const PlannedArm& arm : plan.arms)
      text += line_of(arm) + refused_text(arm, "          ") + fit_text(arm, plan.capacity, "          ");
    for (const Gate& gate : plan.gates) {
      if (!*gate.pass) text += gate_text(gate);
      ++(*gate.pass ? hold : fail);
    }
    open += plan.open;
  }
  text += fmt::format("{}, {} of them run here, {}", counted(plans.size(), "cell"), runs, counted(arms, "arm"));
  if (predicted < arms) text += fmt::format("; {} of {} are predicted", predicted, counted(arms, "arm"));
  if (hold + fail > 0)
    text += fmt::format("; predictions decide {} of {}: {}", hold + fail, counted(hold + fail + open, "expectation"),
                        fail == 0 ? "all hold" : fmt::format("{} fail", fail));
  return text + "\n";
}

}  // namespace

namespace {

/// The program whose predictions are those of the library that `request.as` names; `title` says which.
Program as_library(const PlanRequest& request, const Program& program, std::string& title) {
  if (request.as.empty()) return program;
  if (!request.model.empty())
    fail("plan: --as predicts the cells of scenario files; write one (`fp8lab init memory`) with the model's sizes");
  Program out = program;
  const auto profile = MemoryProfile::find(fmt::format("{}/profiles", program.worker_directory), request.as);
  title = fmt::format("As {}\n", profile.title());
  out.estimate = [profile](const CellConfig& cell, Arm arm) { return profile.estimate(cell, arm); };
  out.finds_fits = false;
  return out;
}

}  // namespace

int plan_command(const PlanRequest& request, const Program& own) {
  std::string title;
  const Program program = as_library(request, own, title);
  const Capacity capacity = capacity_of(request);
  std::vector<Planned> plans;
  std::string text;
  if (!request.model.empty()) {
    if (!request.selection.paths.empty()) fail("plan: give scenario files or --model, not both");
    const ModelPlan model = model_plan(request, capacity, program.vocabulary());
    for (const PlannedCell& cell : model.cells) plans.push_back(planned(cell, capacity.bytes, {Arm::kAfter}, program));
    text = request.json ? "" : model_text(plans, model);
  } else {
    if (request.selection.paths.empty()) fail("plan: give scenario files, or --model NAME; see fp8lab plan --help");
    if (!request.ranks.empty() || !request.recipes.empty() || !request.settings.empty())
      fail("plan: --ranks, --recipe and --set belong to --model; a scenario file says these itself");
    LoadedScenarios loaded = load_scenarios(find_scenario_files(request.selection.paths), program.vocabulary());
    for (const ScenarioError& error : loaded.errors) report_error(error.what());
    if (!loaded.errors.empty()) return exit_code({.verdicts = {}, .bad_usage = true});
    const std::vector<std::string> devices = devices_of(loaded.cells);
    select_cells(loaded.cells, request.selection, program.vocabulary());
    if (request.as.empty()) Subjects(program.worker_directory).skip_impossible(loaded.cells, program.vocabulary());
    for (const PlannedCell& cell : loaded.cells)
      plans.push_back(planned(cell, capacity.bytes, arms_of(cell, program.vocabulary()), program));
    if (plans.empty()) report_error(nothing_matches(request.selection, devices, program.vocabulary()));
    text = request.json || plans.empty() ? "" : title + scenario_text(plans);
  }
  if (request.json) {
    Json json = Json::array();
    for (const Planned& plan : plans) json.push_back(json_of(plan));
    text = json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  std::fputs(text.c_str(), stdout);
  if (plans.empty()) return exit_code({});
  const bool predicts = std::any_of(plans.begin(), plans.end(), [](const Planned& plan) {
    return std::any_of(plan.arms.begin(), plan.arms.end(),
                       [](const PlannedArm& arm) { return !arm.estimate.figures.empty(); });
  });
  if (!predicts) {
    std::fflush(stdout);  // the reasons come first also where both streams are one file
    report_error("plan: nothing is predicted, for the reasons above");
    return exit_code({.verdicts = {Verdict::kInconclusive}});
  }
  return std::any_of(plans.begin(), plans.end(), [&](const Planned& plan) { return plan.fails(capacity.bytes > 0); });
}

}  // namespace fp8lab

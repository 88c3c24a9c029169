#include "harness/cli/plan/plan_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "harness/cell/escape.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kColumns{"memory.peak_bytes", "memory.weight_bytes", "memory.retained_bytes",
                                                   "traffic.all_gather_bytes"};

/// Owners of less than this part of a peak are one in its line.
constexpr std::int64_t kSmallestPart = 50;

constexpr const char* kMayNeedMore = "blocks of the allocator may need more";
constexpr const char* kShownBy = ", which a run on meta shows (fp8lab run FILE -d meta)";
/// Marks a peak that fits by little, see is_tight(); a line below all others explains it.
constexpr const char* kByLiveBytes = " by live bytes";

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

/// What holds the peak; what is less than a hundredth of it in all is left out:
/// "in backward: 29.7 GiB activations and FP8 copies, 11.2 GiB the optimizer's state, 0.1 GiB other"
std::string owners_text(const Estimate& estimate) {
  std::int64_t peak = 0, rest = 0;
  for (const auto& [owner, bytes] : estimate.peak_by_owner) peak += bytes;
  std::string out;
  for (const auto& [owner, bytes] : estimate.peak_by_owner) {
    if (bytes < peak / kSmallestPart)
      rest += bytes;
    else
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", bytes_text(static_cast<double>(bytes)), owner);
  }
  if (rest * 100 >= peak && rest > 0) out += fmt::format(", {} other", bytes_text(static_cast<double>(rest)));
  return out.empty() ? "" : fmt::format("in {}: {}", estimate.peak_phase, out);
}

std::string changes_text(const Fit& fit, std::int64_t capacity) {
  std::string changes, costs;
  for (const FitChange& change : fit.changes) {
    changes += fmt::format("{}{}={}", changes.empty() ? "" : ", ", change.key, change.value);
    costs += fmt::format("{}{}", costs.empty() ? "" : "; ", change.cost);
  }
  return fmt::format("{}: {}{} ({})", changes, bytes_text(static_cast<double>(fit.peak_bytes)),
                     is_tight(fit.peak_bytes, capacity) ? kByLiveBytes : "", costs);
}

/// The changes that make an arm fit, or those that do not.
std::string search_text(const FitSearch& search, std::int64_t capacity, const std::string& indent) {
  std::string out;
  for (const Fit& fit : search.fits) out += fmt::format("{}fits with {}\n", indent, changes_text(fit, capacity));
  if (search.fits.empty())
    out += indent + (search.tried.empty()
                         ? "no change of those that plan tries applies\n"
                         : fmt::format("nothing that was tried makes it fit: {}\n", fmt::join(search.tried, ", ")));
  return out;
}

bool fits_tightly(const PlannedArm& arm, std::int64_t capacity) {
  return arm.spare && is_tight(capacity - *arm.spare, capacity);
}

/// Whether the arm fits, what its peak consists of, and what makes it fit.
std::string fit_text(const Planned& plan, const PlannedArm& arm, const std::string& indent) {
  const std::int64_t capacity = plan.capacity;
  if (!arm.cannot_run.empty()) return fmt::format("{}does not run: {}\n", indent, for_terminal(arm.cannot_run));
  if (!arm.spare) return "";
  const auto spare = static_cast<double>(*arm.spare);
  const std::string of = bytes_text(static_cast<double>(capacity));
  const bool tight = fits_tightly(arm, capacity);
  std::string out = indent + (spare < 0 ? fmt::format("does not fit {}: {} too much", of, bytes_text(-spare))
                                        : fmt::format("{} {} with {} to spare", tight ? "live bytes fit" : "fits", of,
                                                      bytes_text(spare)));
  if (arm.lasting)
    out += fmt::format(" from the second step on, with the optimizer's state: {}",
                       bytes_text(arm.lasting->figures.at("memory.peak_bytes")));
  if (tight) out += fmt::format("; {}{}", kMayNeedMore, plan.of_library ? "" : kShownBy);
  const std::string owners = owners_text(arm.lasting ? *arm.lasting : arm.estimate);
  out += owners.empty() ? "\n" : fmt::format("; the peak is {}\n", owners);
  return out + (arm.search ? search_text(*arm.search, capacity, indent + "  ") : "");
}

/// What explains the mark of peaks that fit by little, if `text` has it.
std::string live_bytes_legend(const std::string& text) {
  if (text.find(kByLiveBytes) == std::string::npos) return "";
  return fmt::format("(by live bytes: {}{})\n", kMayNeedMore, kShownBy);
}

/// Which of its weights are not FP8, though the cell asks for it.
std::string refused_text(const PlannedArm& arm, const std::string& indent) {
  if (arm.estimate.refused_weights == 0) return "";
  return fmt::format("{}{} of {} stay in high precision{}\n", indent, arm.estimate.refused_weights,
                     counted(static_cast<std::size_t>(arm.estimate.fp8_weights), "FP8 weight"),
                     arm.arm == Arm::kBefore ? "" : ": over these ranks, shards would cut their blocks");
}

/// An expectation that fails, with the figures that say so.
std::string gate_text(const Gate& gate) {
  const Metric* metric = find_metric(gate.metric);
  const std::string_view unit = metric ? metric->unit : "1";
  std::string figures = gate.detail;
  if (gate.observed) figures = "predicted " + figure(*gate.observed, unit);
  if (gate.observed && gate.limit) figures += ", limit " + figure(*gate.limit, unit);
  return fmt::format("  fails: {}: {}\n", for_terminal(gate.text), figures);
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
  if (!arm.cannot_run.empty()) out["cannot_run"] = arm.cannot_run;
  if (!arm.spare) return out;
  if (arm.lasting) out["peak_bytes_from_second_step"] = arm.lasting->figures.at("memory.peak_bytes");
  out["capacity"] = capacity;
  out["fits"] = arm.fits();
  out["reserved_may_exceed_capacity"] = fits_tightly(arm, capacity);
  out["spare_bytes"] = *arm.spare;
  out["fits_with"] = Json::array();
  if (!arm.search) return out;
  for (const Fit& fit : arm.search->fits) {
    Json changes = Json::array();
    for (const FitChange& change : fit.changes)
      changes.push_back({{"key", change.key}, {"value", change.value}, {"cost", change.cost}});
    out["fits_with"].push_back({{"changes", changes},
                                {"peak_bytes", fit.peak_bytes},
                                {"reserved_may_exceed_capacity", is_tight(fit.peak_bytes, capacity)}});
  }
  out["tried"] = arm.search->tried;
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

/// What the rows of a model's plan say of its fewest ranks.
struct Answers {
  std::size_t rows = 0, fitting = 0, mended = 0, tight = 0;
  const Planned* smallest = nullptr;  ///< of the rows that fit, the one with the smallest peak
  const Planned* cheapest = nullptr;  ///< of the others, the one with the cheapest change of all, `change`
  const Fit* change = nullptr;        ///< of those that cost as much, the one with the smallest peak
};

Answers answers_of(const std::vector<Planned>& plans, const ModelPlan& model) {
  Answers out;
  for (std::size_t i = 0; i < plans.size(); i += model.ranks.size()) {
    const PlannedArm& arm = plans[i].arms.front();
    if (!arm.spare) continue;
    ++out.rows;
    out.tight += fits_tightly(arm, plans[i].capacity);
    if (arm.fits()) {
      ++out.fitting;
      if (!out.smallest || *arm.spare > *out.smallest->arms.front().spare) out.smallest = &plans[i];
    }
    if (!arm.search || arm.search->fits.empty()) continue;
    ++out.mended;
    for (const Fit& fit : arm.search->fits) {
      const auto rank = [](const Fit& f) { return std::pair(f.cost, f.peak_bytes); };
      if (out.change && rank(*out.change) <= rank(fit)) continue;
      out.cheapest = &plans[i];
      out.change = &fit;
    }
  }
  return out;
}

/// "; the others fit with a change, the cheapest is that of bf16: training.checkpoint=full: 24.4 GiB (...)"
std::string mended_text(const Answers& answers) {
  if (!answers.change) return "";
  const std::string change = changes_text(*answers.change, answers.cheapest->capacity);
  if (answers.rows == 1) return "; fits with " + change;
  if (answers.mended == 1) return fmt::format("; {} fits with {}", answers.cheapest->cell.title, change);
  const bool all = answers.mended + answers.fitting == answers.rows;
  const std::string who =
      !all                  ? fmt::format("{} {}", answers.mended,
                         answers.fitting > 0 ? "more fit" : "of " + std::to_string(answers.rows) + " recipes fit")
      : answers.fitting > 0 ? "the others fit"
                            : "every recipe fits";
  return fmt::format("; {} with a change, the cheapest is that of {}: {}", who, answers.cheapest->cell.title, change);
}

/// One line: which rows of a model's plan fit over the fewest ranks, and the cheapest change with which the others do.
std::string answer_text(const std::vector<Planned>& plans, const ModelPlan& model) {
  const Answers answers = answers_of(plans, model);
  if (answers.rows == 0) return "";
  const std::string over = counted(static_cast<std::size_t>(model.ranks.front()), "rank");
  if (!answers.smallest) return fmt::format("Does not fit over {} as it is{}.\n", over, mended_text(answers));
  const std::int64_t peak = answers.smallest->capacity - *answers.smallest->arms.front().spare;
  const char* const by = is_tight(peak, answers.smallest->capacity) ? kByLiveBytes : "";
  if (answers.fitting == answers.rows)
    return fmt::format("Fits over {}{}{}.\n", over, by,
                       answers.tight == 0 || *by != '\0'
                           ? ""
                           : fmt::format("; {} of {} recipes{} alone", answers.tight, answers.rows, kByLiveBytes));
  return fmt::format("Fits over {}, by {} of {} recipes; the smallest peak is that of {}: {}{}{}.\n", over,
                     answers.fitting, answers.rows, answers.smallest->cell.title, bytes_text(static_cast<double>(peak)),
                     by, mended_text(answers));
}

/// "79.4 GiB ! ": a peak with the marks that stand below the table.
std::string marked_peak(const PlannedArm& arm, std::int64_t capacity) {
  const auto peak = arm.estimate.figures.find("memory.peak_bytes");
  if (peak == arm.estimate.figures.end()) return "-   ";
  const std::string fit = !arm.spare ? "" : *arm.spare < 0 ? "!" : fits_tightly(arm, capacity) ? "?" : "";
  return fmt::format("{} {:<2}", bytes_text(peak->second), fit + (arm.estimate.refused_weights > 0 ? "*" : ""));
}

std::string marks_legend(const std::vector<Planned>& plans) {
  const auto any = [&](const auto& marked) {
    return std::ranges::any_of(plans, [&](const Planned& plan) { return marked(plan.arms.front(), plan.capacity); });
  };
  std::string out;
  if (any([](const PlannedArm& arm, std::int64_t) { return arm.spare && *arm.spare < 0; }))
    out += "(!: does not fit)\n";
  if (any([](const PlannedArm& arm, std::int64_t capacity) { return fits_tightly(arm, capacity); }))
    out += fmt::format("(?: live bytes fit; {})\n", kMayNeedMore);
  if (any([](const PlannedArm& arm, std::int64_t) { return arm.estimate.refused_weights > 0; }))
    out += "(*: FP8 weights stay in high precision where shards would cut their blocks)\n";
  return out;
}

}  // namespace

std::string model_text(const std::vector<Planned>& plans, const ModelPlan& model) {
  std::string out = answer_text(plans, model) + model.heading;
  std::string head = fmt::format("{:<36}", "peak of a rank, by ranks");
  std::vector<std::pair<std::string, std::string>> answers;  // rows, and what they have in common
  for (const int ranks : model.ranks) head += fmt::format(" {:>12} ", ranks);
  out += head + "\n";
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const bool first = i % model.ranks.size() == 0;
    const PlannedArm& arm = plans[i].arms.front();
    if (first) out += fmt::format("{}{:<36}", i == 0 ? "" : "\n", plans[i].cell.title);
    out += fmt::format(" {:>13}", marked_peak(arm, plans[i].capacity));
    if (!first) continue;
    std::string answer = arm.reason.empty() ? fit_text(plans[i], arm, "  ") : fmt::format("  {}\n", arm.reason);
    const auto same = std::ranges::find(answers, answer, &std::pair<std::string, std::string>::second);
    if (same == answers.end())
      answers.emplace_back(plans[i].cell.title, std::move(answer));
    else
      same->first += "; " + plans[i].cell.title;
  }
  out += "\n" + marks_legend(plans);
  if (plans.empty() || plans.front().capacity == 0) return out;
  out += fmt::format("\nOver {}:\n", counted(static_cast<std::size_t>(model.ranks.front()), "rank"));
  for (const auto& [rows, answer] : answers) out += rows + "\n" + answer;
  return out + live_bytes_legend(out);
}

namespace {

std::string why_not_run(const PlannedCell& cell) {
  if (cell.skip_reason.empty()) return "";
  return fmt::format("  {}: {}", cell.skipped_here ? "not run here" : "skipped", for_terminal(cell.skip_reason));
}

}  // namespace

std::string scenario_text(const std::vector<Planned>& plans, bool says_what_runs) {
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
      text += line_of(arm) + refused_text(arm, "          ") + fit_text(plan, arm, "          ");
    for (const Gate& gate : plan.gates) {
      if (!*gate.pass) text += gate_text(gate);
      ++(*gate.pass ? hold : fail);
    }
    open += plan.open;
  }
  text += fmt::format("{}, {}{}", counted(plans.size(), "cell"),
                      says_what_runs ? fmt::format("{} of them run here, ", runs) : "", counted(arms, "arm"));
  if (predicted < arms) text += fmt::format("; {} of {} are predicted", predicted, counted(arms, "arm"));
  if (hold + fail > 0)
    text += fmt::format("; predictions decide {} of {}: {}", hold + fail, counted(hold + fail + open, "expectation"),
                        fail == 0 ? "all hold" : fmt::format("{} fail", fail));
  return text + "\n" + live_bytes_legend(text);
}

std::string plans_json(const std::vector<Planned>& plans) {
  Json json = Json::array();
  for (const Planned& plan : plans) json.push_back(json_of(plan));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fp8lab

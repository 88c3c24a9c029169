#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/cell/escape.h"
#include "harness/cell/median.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/results/compare/compare.h"
#include "harness/results/json_text.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

/// The most lines of a section; --json prints all changes.
constexpr std::size_t kMostLines = 40;

std::string figure_text(const std::optional<double>& value, const std::string& unit) {
  return value ? figure(*value, unit) : "no figure";
}

/// "+3.9 %", or "855 times as much".
std::string ratio_text(double ratio) {
  return std::abs(ratio) > 10 ? fmt::format("{:.3g} times as much", ratio)
                              : fmt::format("{:+.3g} %", 100 * (ratio - 1));
}

/// ", within its slack of 100 %" of a difference that is neither better nor worse because it is small; else "".
std::string slack_text(const Change& change) {
  const Metric* metric = find_metric(change.metric);
  if (!metric || !metric->has_slack() || change.direction != Direction::kNeutral || !change.gated || !change.was ||
      !change.is)
    return "";
  const bool relative = metric->slack_rel * std::min(std::abs(*change.was), std::abs(*change.is)) > metric->slack_abs;
  return ", within its slack of " +
         (relative ? fmt::format("{} %", shortest(100 * metric->slack_rel)) : figure(metric->slack_abs, metric->unit));
}

std::string because(const std::string& reason) { return reason.empty() ? "" : ": " + reason; }

}  // namespace

std::string text_of(const Change& change) {
  switch (change.kind) {
    case ChangeKind::kVanished:
      return fmt::format(
          "vanished; it was {}{}", change.was_text,
          change.is_text.empty() ? "" : fmt::format(" and is {}{}", change.is_text, because(change.reason)));
    case ChangeKind::kAppeared: return fmt::format("appeared; it is {}", change.is_text);
    case ChangeKind::kVerdict:
      return fmt::format("{} -> {}{}", change.was_text, change.is_text, because(change.reason));
    case ChangeKind::kArm: {
      const auto ending = [](const std::string& status) { return status.empty() ? "did not run" : "ended " + status; };
      return fmt::format("the {} arm {} and now {}{}", change.arm, ending(change.was_text), ending(change.is_text),
                         because(change.reason));
    }
    case ChangeKind::kRedefined:
      return fmt::format("the scenario was {} and is {}; its figures are not gated", change.was_text, change.is_text);
    case ChangeKind::kGates:
      return fmt::format("its gates changed; was: {}; is: {}", change.was_text.empty() ? "none" : change.was_text,
                         change.is_text.empty() ? "none" : change.is_text);
    case ChangeKind::kFigure:
    case ChangeKind::kNoFigure: break;
  }
  std::string out = fmt::format("{} {}: {} -> {}", change.arm, change.metric, figure_text(change.was, change.unit),
                                figure_text(change.is, change.unit));
  if (change.was && change.is && *change.was != 0) out += " (" + ratio_text(*change.is / *change.was) + ")";
  return out + slack_text(change) + because(change.reason);
}

namespace {

/// One section: a line per cell, and below it a line per change.
template <class Belongs>
std::string section(const RunComparison& comparison, std::string_view title, Belongs belongs) {
  std::string lines, cell;
  std::set<std::string> cells;
  std::size_t number = 0;
  for (const Change& change : comparison.changes) {
    if (!belongs(change)) continue;
    cells.insert(change.id);
    if (++number > kMostLines) continue;
    if (change.id != cell) lines += fmt::format("  {}\n", for_terminal(change.id));
    cell = change.id;
    lines += fmt::format("    {}\n", for_terminal(text_of(change)));
  }
  if (number == 0) return "";
  std::string out = fmt::format("{} ({}):\n{}", title, counted(cells.size(), "cell"), lines);
  if (number > kMostLines) out += fmt::format("  and {} more; --json prints all\n", number - kMostLines);
  return out;
}

/// True for a share of a sum, which the finding of the cell names if it matters.
bool is_share(const Change& change) {
  const Metric* metric = find_metric(change.metric);
  return metric && metric->is_family();
}

/// By which part of its baseline a figure changed; infinite if it had none.
double relative_change(const Change& change) {
  if (!change.was || !change.is) return std::numeric_limits<double>::infinity();
  return std::abs(*change.is - *change.was) / std::abs(*change.was);
}

struct RedefinedCell {
  const Change* definition = nullptr;
  std::vector<const Change*> figures;  ///< in both runs, without shares of sums, the largest relative change first
};

std::vector<RedefinedCell> redefined_cells(const RunComparison& comparison) {
  std::vector<RedefinedCell> out;
  for (const Change& change : comparison.changes) {
    if (change.kind == ChangeKind::kRedefined) out.push_back({&change, {}});
    if (!change.gated && !is_share(change)) out.back().figures.push_back(&change);
  }
  for (RedefinedCell& cell : out)
    std::ranges::stable_sort(cell.figures, std::greater{},
                             [](const Change* change) { return relative_change(*change); });
  return out;
}

/// Each redefined cell with both runs' figures.
std::string redefined_text(const RunComparison& comparison) {
  constexpr std::size_t kMostFigures = 6;
  const std::vector<RedefinedCell> cells = redefined_cells(comparison);
  if (cells.empty()) return "";
  std::string out = fmt::format("Redefined ({}), figures of both runs, not gated:\n", counted(cells.size(), "cell"));
  for (std::size_t i = 0; i < std::min(cells.size(), kMostLines); ++i) {
    const RedefinedCell& cell = cells[i];
    out += for_terminal(fmt::format("  {}: {}", cell.definition->id, text_of(*cell.definition))) + "\n";
    for (std::size_t k = 0; k < std::min(cell.figures.size(), kMostFigures); ++k)
      out += fmt::format("    not gated: {}\n", for_terminal(text_of(*cell.figures[k])));
    if (cell.figures.empty()) out += "    no figure differs\n";
    if (cell.figures.size() > kMostFigures)
      out += fmt::format("    and {}; --json has all\n", counted(cell.figures.size() - kMostFigures, "more figure"));
  }
  if (cells.size() > kMostLines)
    out += fmt::format("  and {}; --json has all\n", counted(cells.size() - kMostLines, "more cell"));
  return out;
}

std::string line_of(const Finding& finding) {
  const std::string_view head = finding.allowed                           ? "allowed: "
                                : finding.direction == Direction::kBetter ? "better: "
                                                                          : "";
  return fmt::format("{}{}{}", head, finding.text, finding.since.empty() ? "" : "; since " + finding.since);
}

/// A line for each cell that changed, the worst first.
std::string findings_text(const RunComparison& comparison) {
  std::string out;
  std::size_t number = 0;
  for (const Finding& finding : comparison.findings)
    if (++number <= kMostLines) out += for_terminal(fmt::format("{}: {}", finding.id, line_of(finding))) + "\n";
  if (number > kMostLines) out += fmt::format("and {} more cells; --json has all\n", number - kMostLines);
  return out.empty() ? "" : out + "\n";
}

/// "host.pre_forward_ns, after: 4 cells, 0.98 to 1.07 times what it was, median 1.01"
std::string timings_text(const RunComparison& comparison) {
  std::map<std::string, std::vector<double>> ratios;
  for (const Timing& timing : comparison.timings)
    if (timing.was > 0) ratios[fmt::format("{}, {}", timing.metric, timing.arm)].push_back(timing.is / timing.was);
  std::string out;
  for (auto& [what, values] : ratios) {
    std::sort(values.begin(), values.end());
    if (out.empty()) out = "Figures that differ from run to run, which are not judged:\n";
    out += fmt::format("  {}: {}, {:.2f} to {:.2f} times what it was, median {:.2f}\n", what,
                       counted(values.size(), "cell"), values.front(), values.back(), median(values));
  }
  return out;
}

std::string environment_text(const RunComparison& comparison) {
  std::string out;
  for (const EnvironmentChange& change : comparison.environment) {
    if (out.empty()) out = "The environments differ:\n";
    const auto shown = [](const std::string& value) { return value.empty() ? "-" : for_terminal(value); };
    out += fmt::format("  {}: {} -> {}\n", for_terminal(change.key), shown(change.was), shown(change.is));
  }
  return out;
}

Json number_or_null(const std::optional<double>& value) {
  return value ? Json::parse(shortest(*value)) : Json(nullptr);
}

Json change_json(const Change& change) {
  Json out{{"kind", name(change.kind)},
           {"direction", name(change.direction)},
           {"id", change.id},
           {"file", change.file},
           {"line", change.line},
           {"regression", change.is_regression()},
           {"allowed", change.allowed},
           {"gated", change.gated},
           {"reason", text_or_null(change.reason)},
           {"text", text_of(change)}};
  if (!change.arm.empty()) out["arm"] = change.arm;
  if (change.metric.empty()) {
    out["was"] = text_or_null(change.was_text);
    out["is"] = text_or_null(change.is_text);
    return out;
  }
  out["metric"] = change.metric;
  out["unit"] = change.unit;
  out["was"] = number_or_null(change.was);
  out["is"] = number_or_null(change.is);
  return out;
}

Json finding_json(const Finding& finding) {
  return {{"id", finding.id},
          {"direction", name(finding.direction)},
          {"regression", finding.is_regression()},
          {"arm", text_or_null(finding.arm)},
          {"metric", text_or_null(finding.metric)},
          {"unit", text_or_null(finding.unit)},
          {"was", number_or_null(finding.was)},
          {"is", number_or_null(finding.is)},
          {"phase", text_or_null(finding.phase)},
          {"holder", text_or_null(finding.holder)},
          {"holder_bytes", finding.holder.empty() ? Json(nullptr) : Json(finding.holder_bytes)},
          {"also", finding.also},
          {"since", text_or_null(finding.since)},
          {"text", finding.text}};
}

/// "; 3 cells were redefined and are not gated", or nothing.
std::string redefined_count(const RunComparison& comparison) {
  if (comparison.cells_redefined == 0) return "";
  return fmt::format("; {} redefined and not gated", counted(comparison.cells_redefined, "cell"));
}

std::string verdict_line(const RunComparison& comparison) {
  switch (comparison.exit_code()) {
    case 0:
      return fmt::format("no regression in {}", counted(comparison.cells_compared, "cell")) +
             redefined_count(comparison);
    case 5: return "nothing to compare: no cell ran in both";
    default: {
      std::set<std::string> worse;
      for (const Change& change : comparison.changes)
        if (change.is_regression()) worse.insert(change.id);
      return fmt::format("{} worse or vanished ({}), {} compared", counted(worse.size(), "cell"),
                         counted(comparison.regressions(), "change"), comparison.cells_compared) +
             redefined_count(comparison);
    }
  }
}

/// Lines on runs that were stopped before their end, with `start` before each.
std::string incomplete_text(const RunComparison& comparison, std::string_view start) {
  std::string out;
  if (!comparison.baseline_complete) out += fmt::format("{}The baseline was stopped before its end.\n", start);
  if (!comparison.complete) out += fmt::format("{}The run was stopped before its end.\n", start);
  return out;
}

}  // namespace

std::string_view name(ChangeKind kind) {
  switch (kind) {
    case ChangeKind::kVanished: return "vanished";
    case ChangeKind::kAppeared: return "appeared";
    case ChangeKind::kVerdict: return "verdict";
    case ChangeKind::kFigure: return "figure";
    case ChangeKind::kNoFigure: return "no_figure";
    case ChangeKind::kArm: return "arm";
    case ChangeKind::kRedefined: return "redefined";
    case ChangeKind::kGates: return "gates";
  }
  return "?";
}

std::string_view name(Direction direction) {
  switch (direction) {
    case Direction::kWorse: return "worse";
    case Direction::kBetter: return "better";
    case Direction::kNeutral: return "neutral";
  }
  return "?";
}

std::string comparison_text(const RunComparison& comparison) {
  std::string out = findings_text(comparison);
  out += incomplete_text(comparison, "");
  out += environment_text(comparison);
  out += timings_text(comparison);
  const auto neutral = [](ChangeKind kind) {
    return [kind](const Change& change) { return change.direction == Direction::kNeutral && change.kind == kind; };
  };
  out += section(comparison, "Appeared", neutral(ChangeKind::kAppeared));
  out += redefined_text(comparison);
  out += section(comparison, "Other gates", neutral(ChangeKind::kGates));
  out += section(comparison, "Other, neither better nor worse", [](const Change& change) {
    return change.direction == Direction::kNeutral && change.kind != ChangeKind::kAppeared &&
           change.kind != ChangeKind::kRedefined && change.kind != ChangeKind::kGates && change.gated &&
           !is_share(change);
  });
  out += section(comparison, "Better", [](const Change& c) { return c.direction == Direction::kBetter; });
  out += section(comparison, "Worse, and allowed", [](const Change& c) { return c.allowed; });
  const auto regression = [](bool vanished) {
    return [vanished](const Change& c) { return c.is_regression() && (c.kind == ChangeKind::kVanished) == vanished; };
  };
  out += section(comparison, "Vanished", regression(true));
  out += section(comparison, "Worse", regression(false));
  return out + verdict_line(comparison) + "\n";
}

namespace {

/// Cells with a change of the kind, the first few by name; empty if there are none.
std::string markdown_list(const RunComparison& comparison, ChangeKind kind, std::string_view what) {
  constexpr std::size_t kMostCells = 10;
  std::size_t count = 0;
  std::string lines;
  for (const Change& change : comparison.changes)
    if (change.kind == kind && ++count <= kMostCells)
      lines += fmt::format("- {}: {}\n", for_markdown(change.id), for_markdown(text_of(change)));
  if (count == 0) return "";
  if (count > kMostCells) lines += fmt::format("- and {} more\n", count - kMostCells);
  return fmt::format("\n{} {}:\n\n{}", counted(count, "cell"), what, lines);
}

/// A row for each figure of the redefined cells that differs, with both runs' values.
std::string redefined_markdown(const RunComparison& comparison) {
  const std::vector<RedefinedCell> cells = redefined_cells(comparison);
  if (cells.empty()) return "";
  std::size_t rows = 0;
  std::string out = fmt::format("\n{} redefined, figures not gated:\n\n| cell | figure, not gated |\n|---|---|\n",
                                counted(cells.size(), "cell"));
  const auto row = [&](const Change& change) {
    if (++rows <= kMostLines)
      out += fmt::format("| {} | {} |\n", for_markdown(change.id), for_markdown(text_of(change)));
  };
  for (const RedefinedCell& cell : cells) {
    row(*cell.definition);
    for (const Change* figure : cell.figures) row(*figure);
  }
  return out +
         (rows > kMostLines ? fmt::format("\nand {}; --json has all\n", counted(rows - kMostLines, "more row")) : "");
}

}  // namespace

std::string comparison_markdown(const RunComparison& comparison) {
  std::string out = fmt::format("**{}**\n", verdict_line(comparison)) + incomplete_text(comparison, "\n") +
                    markdown_list(comparison, ChangeKind::kAppeared, "appeared") + redefined_markdown(comparison) +
                    markdown_list(comparison, ChangeKind::kGates, "with other gates");
  if (comparison.findings.empty()) return out;
  out += "\n| cell | what changed | holder | since |\n|---|---|---|---|\n";
  for (const Finding& finding : comparison.findings) {
    const auto cell = [](const std::string& text) { return for_markdown(text); };
    out += fmt::format("| {} | {} | {} | {} |\n", cell(finding.id), cell(finding.text), cell(finding.holder),
                       cell(finding.since));
  }
  return out;
}

std::string comparison_json(const RunComparison& comparison) {
  Json out{{"schema", kComparisonSchema},
           {"exit_code", comparison.exit_code()},
           {"cells_compared", comparison.cells_compared},
           {"cells_redefined", comparison.cells_redefined},
           {"regressions", comparison.regressions()},
           {"worse", comparison.count(Direction::kWorse)},
           {"better", comparison.count(Direction::kBetter)},
           {"baseline_complete", comparison.baseline_complete},
           {"complete", comparison.complete},
           {"findings", Json::array()},
           {"changes", Json::array()},
           {"timings", Json::array()},
           {"environment", Json::array()}};
  for (const Finding& finding : comparison.findings) out["findings"].push_back(finding_json(finding));
  for (const Change& change : comparison.changes) out["changes"].push_back(change_json(change));
  for (const Timing& t : comparison.timings)
    out["timings"].push_back(
        {{"id", t.id}, {"arm", t.arm}, {"metric", t.metric}, {"unit", t.unit}, {"was", t.was}, {"is", t.is}});
  for (const EnvironmentChange& e : comparison.environment)
    out["environment"].push_back({{"key", e.key}, {"was", text_or_null(e.was)}, {"is", text_or_null(e.is)}});
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fp8lab

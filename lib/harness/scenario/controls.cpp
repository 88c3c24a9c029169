#include "harness/scenario/controls.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "harness/cell/metrics.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/subject_keys.h"

namespace fp8lab {
namespace {

constexpr std::string_view kSame = "/control=same", kPlantedEnd = "/control=planted";

/// What equal arms have in common, and what the planted byte, collective and time change.
constexpr std::string_view kPeak = "memory.peak_bytes", kCollectives = "traffic.collectives",
                           kGathered = "traffic.all_gather_bytes", kLossGap = "parity.loss_gap", kStep = "time.step_ms";
/// Below the planted 5 % and above 0, so that an interval has room on both sides.
constexpr double kPlantedShows = 1.01, kSameAllows = 1.05;

bool measures(const CellConfig& cell, std::string_view metric) {
  const std::string_view group = find_metric(metric)->group();
  return std::ranges::find(cell.measure, group) != cell.measure.end();
}

/// What a planted byte takes: PyTorch's allocator on a GPU gives 512 for it.
double planted_bytes(const CellConfig& cell) { return is_library(cell) && cell.device == "cuda" ? 512 : 1; }

Expectation difference_equals(std::string_view metric, double value) {
  Expectation out;
  out.side = Side::kDifference;
  out.metric = metric;
  out.low = value;
  return out;
}

Expectation step_compared(Side side, Comparison comparison, Arm of, double factor) {
  Expectation out;
  out.side = side;
  out.metric = kStep;
  out.comparison = comparison;
  out.of = of;
  out.factor = factor;
  return out;
}

std::vector<Expectation> expectations(const CellConfig& cell, bool gates_time) {
  const bool same = cell.control == Control::kSame;
  std::vector<Expectation> out;
  if (measures(cell, kPeak)) out.push_back(difference_equals(kPeak, same ? 0 : planted_bytes(cell)));
  if (measures(cell, kCollectives) && has_ranks(cell)) {
    out.push_back(difference_equals(kCollectives, same ? 0 : 1));
    if (same) out.push_back(difference_equals(kGathered, 0));
  }
  if (measures(cell, kLossGap) && same && !is_script(cell) && cell.device != "meta")
    out.push_back(difference_equals(kLossGap, 0));
  if (gates_time && measures(cell, kStep) && cell.training.steps > 1)
    out.push_back(same ? step_compared(Side::kAfter, Comparison::kAtMost, Arm::kBefore, kSameAllows)
                       : step_compared(Side::kBefore, Comparison::kAtLeast, Arm::kAfter, kPlantedShows));
  return out;
}

bool gates_its_time(const PlannedCell& cell) {
  return std::ranges::any_of(cell.expect, [](const Expectation& e) { return e.metric.starts_with("time."); });
}

PlannedCell control_of(const PlannedCell& cell, Control control, bool gates_time) {
  PlannedCell out = cell;
  out.config.fix.clear();
  out.config.versions.before.clear();  // both arms run the after arm's version
  out.config.script.before_arguments.reset();
  out.config.script.patch_before.clear();
  out.config.control = control;
  out.config.id = cell.config.scenario + std::string(control == Control::kSame ? kSame : kPlantedEnd);
  out.config.axes = {{"control", std::string(out.config.control.text())}};
  out.title = fmt::format("{}: {}", control == Control::kSame ? "Equal arms" : "A planted change", cell.title);
  out.upstream.clear();
  out.counterfactual = false;
  out.claims.clear();
  out.expect = expectations(out.config, gates_time || gates_its_time(cell));
  return out;
}

bool may_crash(const PlannedCell& cell) {
  return std::ranges::any_of(cell.expect, [](const Expectation& e) { return e.comparison == Comparison::kEnds; });
}

}  // namespace

std::vector<PlannedCell> control_cells(const std::vector<PlannedCell>& cells, bool gates_time) {
  std::vector<PlannedCell> out;
  std::set<std::string> scenarios;
  for (const PlannedCell& cell : cells) {
    if (!cell.skip_reason.empty() || may_crash(cell) || cell.config.control != Control::kNone) continue;
    if (!scenarios.insert(cell.config.scenario).second) continue;
    for (const Control control : {Control::kSame, Control::kPlanted})
      if (is_script(cell.config) && control == Control::kPlanted)
        continue;
      else if (PlannedCell made = control_of(cell, control, gates_time); !made.expect.empty())
        out.push_back(std::move(made));
  }
  return out;
}

bool is_control(std::string_view id) { return id.ends_with(kSame) || id.ends_with(kPlantedEnd); }

void ControlCounts::add(std::string_view id, Outcome outcome) {
  Outcomes* counts = id.ends_with(kSame) ? &same : id.ends_with(kPlantedEnd) ? &planted : nullptr;
  if (counts == nullptr) return;
  switch (outcome) {
    case Outcome::kGood: ++counts->good; break;
    case Outcome::kUndecided: ++counts->undecided; break;
    case Outcome::kWrong: ++counts->wrong; break;
  }
}

std::string ControlCounts::text() const {
  const auto all = [](const Outcomes& counts) { return counts.good + counts.undecided + counts.wrong; };
  if (all(same) + all(planted) == 0) return {};
  return fmt::format(
      "controls: equal pairs: {}, false alarms: {}, undecided: {}; planted changes: {}, missed: {}, "
      "undecided: {}",
      all(same), same.wrong, same.undecided, all(planted), planted.wrong, planted.undecided);
}

}  // namespace fp8lab

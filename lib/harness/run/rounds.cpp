#include "harness/run/rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/fnv1a.h"
#include "harness/cell/median.h"
#include "harness/cell/metrics.h"

namespace fp8lab {
namespace {

/// Above kFewestPairs, so that one slow process does not widen the interval to its figure.
constexpr int kProcessesOfAGate = 8;
constexpr int kMostTimesAsMany = 3;

bool is_timed(std::string_view metric) {
  const Metric* row = find_metric(metric);
  return row != nullptr && !row->exact;
}

bool same(const std::optional<double>& a, const std::optional<double>& b) {
  return a == b || (a && b && std::isnan(*a) && std::isnan(*b));
}

bool undecided(const PlannedCell& cell, const ArmResults& results) {
  const Judgement judgement = judge(cell.config, results, cell.expect);
  for (std::size_t i = 0; i < cell.expect.size(); ++i)
    if (needs_more_processes(cell.expect[i], judgement.gates[i])) return true;
  return false;
}

}  // namespace

ProcessCounts processes_of(const PlannedCell& cell, int asked) {
  if (!any_group(cell.config.measure, &MetricGroup::alone)) return {};
  const bool gated = std::ranges::any_of(cell.expect, is_timed_ratio);
  const int fewest = asked > 0 ? asked : gated ? kProcessesOfAGate : 1;
  return {.fewest = fewest, .most = gated ? kMostTimesAsMany * fewest : fewest};
}

Rounds::Rounds(const PlannedCell& cell, std::vector<Arm> arms, ProcessCounts counts)
    : cell_(cell), arms_(std::move(arms)), counts_(counts), random_(fnv1a(cell.config.id)) {}

std::vector<Arm> Rounds::next(const ArmResults& results) {
  const bool all_well = std::ranges::all_of(results, [](const auto& entry) { return entry.second.status == "ok"; });
  const bool more =
      done_ == 0 || (all_well && (done_ < counts_.fewest || (done_ < counts_.most && undecided(cell_, results))));
  if (!more) return {};
  ++done_;
  std::vector<Arm> order = arms_;
  if (counts_.most > 1)
    std::shuffle(order.begin(), order.end(), random_);
  else
    std::ranges::reverse(order);  // parity keeps runs of BF16 and of the fixed side, with which the others are compared
  return order;
}

void Rounds::add(Arm arm, ArmResult result, ArmResults& results) const {
  if (counts_.most > 1)
    for (const auto& [metric, figure] : result.metrics)
      if (is_timed(metric) && figure.value) result.by_process[metric] = {*figure.value};
  const auto found = results.find(arm);
  if (found == results.end() || result.status != "ok" || found->second.status != "ok") {
    if (found == results.end() || found->second.status == "ok") results[arm] = std::move(result);
    return;
  }
  ArmResult& all = found->second;
  all.seconds += result.seconds;
  for (const auto& [metric, figure] : result.metrics) {
    MetricValue& first = all.metrics[metric];
    if (is_timed(metric)) {
      if (!figure.value) continue;
      std::vector<double>& figures = all.by_process[metric];
      figures.push_back(*figure.value);
      first.value = median(figures);
    } else if (!same(first.value, figure.value)) {
      all.notes.push_back(fmt::format("{} differs between processes of this arm: {} in the first, {} in a later one",
                                      metric, first.value.value_or(0), figure.value.value_or(0)));
    }
  }
}

}  // namespace fp8lab

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "harness/cell/cell.h"

namespace fp8lab {

/// Whether less or more of a metric is better. kNeither: the metric only describes, as a prediction does.
enum class Better { kLess, kMore, kNeither };

/// True for a group that compares values, of which some devices compute none.
inline bool is_of_values(std::string_view group) {
  return group == "parity" || group == "reference" || group == "twin";
}

/// One row of the metric table in metrics.cpp; a new metric is a new row.
struct Metric {
  std::string_view name;  ///< "group.figure_unit"; a trailing '*' names a family: memory.by_holder.*
  std::string_view unit;  ///< "B", "ns", "ms", "dB", or "1" for counts, fractions and flags
  Better better;
  bool exact;  ///< equal in every run of the same cell, so that one run is enough to compare
  std::string_view meaning;
  /// The slack of an exact metric: it is a regression only if the figure is worse than the earlier one by more than the
  /// larger of slack_abs, in the metric's unit, and slack_rel * |earlier figure|. 0: every machine gives the same
  /// figure. Figures that depend on the order of additions differ between processors and matrix libraries.
  double slack_abs = 0;
  double slack_rel = 0;
  std::string_view former_name = {};  ///< the metric's name in results of earlier versions

  std::string_view group() const { return name.substr(0, name.find('.')); }
  bool is_of_values() const { return fp8lab::is_of_values(group()); }
  bool is_family() const { return name.ends_with('*'); }
  bool has_slack() const { return slack_abs > 0 || slack_rel > 0; }
  /// False if no cell has a closed form of the metric.
  bool is_predicted() const;
};

std::span<const Metric> metrics();

/// The row of `name`, or nullptr; a family matches by its prefix.
const Metric* find_metric(std::string_view name);

/// Translates the former name of a metric, from results of earlier versions, to its present name.
std::string present_metric_name(const std::string& name);

/// A gate that every cell has that measures the group, in each of its arms, without a line in `expect`.
struct GroupGate {
  std::string_view metric;
  double value = 0;        ///< what the figure must be
  bool predicted = false;  ///< the figure is the closed form
  bool of_before = true;   ///< also if a fix is reverted; false: the reverted fix may be about this figure
  /// Of values. Only in arms that have the figure (Vocabulary::why_absent), on devices that compute any.
  bool of_values = false;
  /// The figure is at least the value that Vocabulary::floor returns, in arms for which it returns one.
  bool has_floor = false;
  /// Also in arms of libraries. Those have no closed forms, but their recipes have the same floors.
  bool of_libraries = false;
  bool (*applies)(const CellConfig&) = nullptr;  ///< null: to every cell
};

/// A group of metrics that a scenario's `measure` may list.
struct MetricGroup {
  std::string_view name;
  bool alone;               ///< measures time or the host, so no other cell may run at the same time
  bool compared_with_bf16;  ///< needs a BF16 run of the same cell to compare with
  int companions = 0;       ///< most further runs of the model that an arm keeps in memory to measure this
  std::span<const std::string_view> main = {};  ///< the metrics that summaries always show, the first of all first
  std::span<const GroupGate> gates = {};
};

std::span<const MetricGroup> metric_groups();

/// True if any group that `measure` lists has `property`.
bool any_group(const std::vector<std::string>& measure, bool MetricGroup::* property);

}  // namespace fp8lab

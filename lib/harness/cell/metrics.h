#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fp8lab {

/// Which way a metric improves. A metric that only describes (a prediction) improves neither way.
enum class Better { kLess, kMore, kNeither };

/// One row of the metric table. Adding a metric is adding a row in metrics.cpp.
struct Metric {
  std::string_view name;  ///< "group.figure_unit"; a trailing '*' names a family: memory.by_holder.*
  std::string_view unit;  ///< "B", "ns", "ms", "dB", or "1" for counts, fractions and flags
  Better better;
  bool exact;  ///< the same on every run of the same cell, so one run is enough to compare
  std::string_view meaning;
  /// An exact metric may be this much worse than in an earlier run before that is a regression: the larger of
  /// slack_abs, in its unit, and slack_rel of the earlier figure. 0 where every machine gives the same figure; figures
  /// that hang on the order of additions differ between processors and matrix libraries.
  double slack_abs = 0;
  double slack_rel = 0;
  std::string_view former_name = {};  ///< in results that earlier versions wrote

  std::string_view group() const { return name.substr(0, name.find('.')); }
  bool is_family() const { return name.ends_with('*'); }
};

std::span<const Metric> metrics();

/// The row that `name` belongs to (families by prefix), or nullptr.
const Metric* find_metric(std::string_view name);

/// The name that a metric of a result has now, whichever version wrote it.
std::string present_metric_name(const std::string& name);

/// What a scenario's `measure` may list.
struct MetricGroup {
  std::string_view name;
  bool alone;               ///< measures the clock, so no other cell may run beside it
  bool compared_with_bf16;  ///< means something only beside a BF16 run of the same cell
  int companions = 0;       ///< runs of the model, at most, that an arm holds beside its own to measure this
};

std::span<const MetricGroup> metric_groups();

/// True if a group in `measure` has `property`.
bool any_group(const std::vector<std::string>& measure, bool MetricGroup::* property);

}  // namespace fp8lab

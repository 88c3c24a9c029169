#include "harness/results/compare/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "harness/cell/keys.h"
#include "harness/cell/metrics.h"
#include "harness/results/json_reader.h"

namespace fp8lab {
namespace {

/// The distance of a verdict from good. Skipped cells do not come here: they are vanished or appeared.
int distance_from_good(const CellRecord& cell) {
  if (is_undecided_control(cell.config.id, cell.verdict, cell.gates)) return 0;
  switch (cell.verdict) {
    case Verdict::kConfirmed:
    case Verdict::kUnaffected:
    case Verdict::kPass:
    case Verdict::kSkipped: return 0;
    case Verdict::kInconclusive: return 1;
    case Verdict::kNotReproduced:
    case Verdict::kNotFixed:
    case Verdict::kRegressed:
    case Verdict::kFail: return 2;
    case Verdict::kTimeout: return 3;
    case Verdict::kCrashed: return 4;
  }
  return 4;
}

bool ran(const CellRecord* cell) { return cell && cell->verdict != Verdict::kSkipped; }

Direction direction_of(double worse_by) {
  return worse_by > 0 ? Direction::kWorse : worse_by < 0 ? Direction::kBetter : Direction::kNeutral;
}

/// True if a difference of the metric can be worse or better. Families are not judged: their members are shares of a
/// sum, which may shift while the sum, which is judged, stays.
bool is_judged(const Metric& metric) {
  return metric.exact && metric.better != Better::kNeither && !metric.is_family();
}

Direction direction_of(const Metric& metric, double was, double is) {
  if (!is_judged(metric)) return Direction::kNeutral;
  const double worse_by = metric.better == Better::kLess ? is - was : was - is;
  // A share of the smaller figure, so that what is worse one way is better the other way.
  const double slack = std::max(metric.slack_abs, metric.slack_rel * std::min(std::abs(was), std::abs(is)));
  return std::abs(worse_by) <= slack ? Direction::kNeutral : direction_of(worse_by);
}

std::string value_text(const Value& value) {
  return std::holds_alternative<std::monostate>(value) ? "" : to_text(value);
}

int line_of_gate(const CellRecord& cell, Arm arm, const std::string& metric) {
  for (const Gate& gate : cell.gates)
    if (gate.metric == metric && gate.line > 0 && (gate.side == Side::kDifference || name(gate.side) == name(arm)))
      return gate.line;
  return cell.line;
}

class Comparer {
 public:
  explicit Comparer(const std::function<bool(const std::string&)>& allowed) : allowed_(allowed) {}

  void cell(const CellRecord* was, const CellRecord* is) {
    const std::size_t first = out_.changes.size();
    changes_of(was, is);
    const bool both = ran(was) && ran(is);
    const std::span changes(out_.changes.begin() + static_cast<std::ptrdiff_t>(first), out_.changes.end());
    if (both && redefined_) return;
    if (auto found = finding_of(both ? was : nullptr, both ? is : nullptr, changes))
      out_.findings.push_back(std::move(*found));
  }

  void changes_of(const CellRecord* was, const CellRecord* is) {
    if (!ran(was) && !ran(is)) return;
    if (!ran(was)) return add(change(ChangeKind::kAppeared, *is), verdict_of(was), verdict_of(is));
    if (!ran(is)) {
      Change gone = change(ChangeKind::kVanished, is ? *is : *was);
      gone.direction = Direction::kWorse;
      gone.reason = is ? is->reason : "";
      return add(gone, verdict_of(was), verdict_of(is));
    }
    const bool same_gates = gates(*was, *is);
    redefined_ = redefined(*was, *is);
    ++(redefined_ ? out_.cells_redefined : out_.cells_compared);
    verdict(*was, *is, same_gates);
    for (const Arm arm : kArms)
      if (ended(*was, *is, arm)) figures(*is, arm, was->arms.at(arm), is->arms.at(arm));
  }

  void environment(const std::string& was, const std::string& is) {
    const auto before = JsonDocument(was).root().flattened(), now = JsonDocument(is).root().flattened();
    std::set<std::string> keys;
    for (const auto& [key, value] : before) keys.insert(key);
    for (const auto& [key, value] : now) keys.insert(key);
    const auto text = [](const std::map<std::string, std::string>& values, const std::string& key) {
      const auto it = values.find(key);
      return it == values.end() ? "" : it->second;
    };
    for (const std::string& key : keys)
      if (text(before, key) != text(now, key)) out_.environment.push_back({key, text(before, key), text(now, key)});
  }

  RunComparison take() {
    const auto order = [](const Finding& f) {
      return f.allowed ? 2 : f.is_regression() ? 0 : f.direction == Direction::kNeutral ? 1 : 3;
    };
    std::stable_sort(out_.findings.begin(), out_.findings.end(), [&](const Finding& a, const Finding& b) {
      return std::pair(order(a), -a.severity) < std::pair(order(b), -b.severity);
    });
    return std::move(out_);
  }

 private:
  static std::string verdict_of(const CellRecord* cell) { return cell ? std::string(name(cell->verdict)) : ""; }

  Change change(ChangeKind kind, const CellRecord& cell) const {
    Change out;
    out.kind = kind;
    out.id = cell.config.id;
    out.file = cell.file;
    out.line = cell.line;
    return out;
  }

  void add(Change change, const std::string& was = "", const std::string& is = "") {
    change.was_text = was;
    change.is_text = is;
    change.allowed = change.direction == Direction::kWorse && allowed_ && allowed_(change.id);
    out_.changes.push_back(std::move(change));
  }

  /// True if both have the same gates; otherwise records those that only one of them has.
  bool gates(const CellRecord& was, const CellRecord& is) {
    const auto only_in = [](const CellRecord& one, const CellRecord& other) {
      std::string out;
      for (const Gate& gate : one.gates)
        if (std::ranges::find(other.gates, gate.text, &Gate::text) == other.gates.end())
          out += (out.empty() ? "" : "; ") + gate.text;
      return out;
    };
    const std::string before = only_in(was, is), now = only_in(is, was);
    if (before.empty() && now.empty()) return true;
    add(change(ChangeKind::kGates, is), before, now);
    return false;
  }

  /// Under other gates a verdict that is nearer to good does not show a better program.
  void verdict(const CellRecord& was, const CellRecord& is, bool same_gates) {
    if (was.verdict == is.verdict) return;
    Change out = change(ChangeKind::kVerdict, is);
    out.direction = direction_of(distance_from_good(is) - distance_from_good(was));
    if (redefined_ || (!same_gates && out.direction == Direction::kBetter)) out.direction = Direction::kNeutral;
    out.line = line_of_failure(is);
    out.reason = is.reason;
    add(out, std::string(name(was.verdict)), std::string(name(is.verdict)));
  }

  /// True if a key of the cell differs, so that figures are not comparable; records the change.
  bool redefined(const CellRecord& was, const CellRecord& is) {
    std::string before, now;
    // Texts are compared by content, not by path.
    const bool texts = !was.text_checksum.empty() && !is.text_checksum.empty();
    for (const Key& key : keys()) {
      const bool is_text = texts && key.path == "training.corpus";
      const std::string a = is_text ? was.text_checksum : value_text(key.get(was.config)),
                        b = is_text ? is.text_checksum : value_text(key.get(is.config));
      if (a == b) continue;
      before += fmt::format("{}{}={}", before.empty() ? "" : ", ", key.path, a);
      now += fmt::format("{}{}={}", now.empty() ? "" : ", ", key.path, b);
    }
    if (before.empty()) return false;
    add(change(ChangeKind::kRedefined, is), before, now);
    return true;
  }

  /// True if the arm ran in both runs and ended with the same status; otherwise records the change.
  bool ended(const CellRecord& was, const CellRecord& is, Arm arm) {
    const auto before = was.arms.find(arm), now = is.arms.find(arm);
    const std::string was_status = before == was.arms.end() ? "" : before->second.status;
    const std::string is_status = now == is.arms.end() ? "" : now->second.status;
    if (was_status == is_status) return !is_status.empty();
    Change out = change(ChangeKind::kArm, is);
    out.arm = name(arm);
    out.direction = redefined_ ? Direction::kNeutral : direction_of((was_status == "ok") - (is_status == "ok"));
    out.line = line_of_failure(is);
    out.reason = now == is.arms.end() ? "" : now->second.reason;
    add(out, was_status, is_status);
    return false;
  }

  void figures(const CellRecord& cell, Arm arm, const ArmResult& was, const ArmResult& is) {
    for (const auto& [name, before] : was.metrics) {
      const auto now = is.metrics.find(name);
      figure(cell, arm, name, before, now == is.metrics.end() ? MetricValue{} : now->second);
    }
    for (const auto& [name, now] : is.metrics)
      if (!was.metrics.contains(name)) figure(cell, arm, name, {}, now);
  }

  void figure(const CellRecord& cell, Arm arm, const std::string& name, const MetricValue& was, const MetricValue& is) {
    const Metric* metric = find_metric(name);
    if (!metric) return;  // a metric of another version of the program
    if (!metric->exact && !redefined_) {
      if (was.value && is.value)
        out_.timings.push_back(
            {cell.config.id, std::string(fp8lab::name(arm)), name, std::string(metric->unit), *was.value, *is.value});
      return;
    }
    if (was.value == is.value) return;
    const bool both = was.value && is.value;
    Change out = change(both ? ChangeKind::kFigure : ChangeKind::kNoFigure, cell);
    out.line = line_of_gate(cell, arm, name);
    out.arm = fp8lab::name(arm);
    out.metric = name;
    out.unit = metric->unit;
    out.was = was.value;
    out.is = is.value;
    out.reason = both ? "" : is.reason;
    out.gated = !redefined_;
    if (redefined_) return add(out);
    if (both)
      out.direction = direction_of(*metric, *was.value, *is.value);
    else if (was.value && is_judged(*metric))
      out.direction = Direction::kWorse;
    add(out);
  }

  const std::function<bool(const std::string&)>& allowed_;
  bool redefined_ = false;  ///< the cell at hand
  RunComparison out_;
};

using ById = std::map<std::string, const CellRecord*>;

ById by_id(const StoredRun& run) {
  ById out;
  for (const CellRecord& cell : run.cells) out[cell.config.id] = &cell;
  return out;
}

const CellRecord* find(const ById& cells, const std::string& id) {
  const auto it = cells.find(id);
  return it == cells.end() ? nullptr : it->second;
}

}  // namespace

std::size_t RunComparison::count(Direction direction) const {
  return static_cast<std::size_t>(std::count_if(changes.begin(), changes.end(),
                                                [&](const Change& change) { return change.direction == direction; }));
}

std::size_t RunComparison::regressions() const {
  return static_cast<std::size_t>(
      std::count_if(changes.begin(), changes.end(), [](const Change& change) { return change.is_regression(); }));
}

int RunComparison::exit_code() const {
  if (regressions() > 0) return 1;
  const bool any = cells_compared + cells_redefined > 0 ||
                   std::any_of(changes.begin(), changes.end(), [](const Change& change) { return change.allowed; });
  return any ? 0 : 5;
}

RunComparison compare_runs(const StoredRun& baseline, const StoredRun& run,
                           const std::function<bool(const std::string& id)>& allowed) {
  Comparer comparer(allowed);
  const ById before = by_id(baseline), now = by_id(run);
  for (const CellRecord& cell : run.cells) comparer.cell(find(before, cell.config.id), &cell);
  for (const CellRecord& cell : baseline.cells)
    if (!now.contains(cell.config.id)) comparer.cell(&cell, nullptr);
  comparer.environment(baseline.environment_json, run.environment_json);
  RunComparison out = comparer.take();
  out.baseline_complete = baseline.complete;
  out.complete = run.complete;
  return out;
}

}  // namespace fp8lab

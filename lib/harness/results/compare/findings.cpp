#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "harness/cell/metrics.h"
#include "harness/cell/units.h"
#include "harness/results/compare/compare.h"
#include "harness/results/json_reader.h"

// One finding for each cell that changed: the largest relative change, its causes, and who holds the bytes.
namespace fp8lab {
namespace {

/// Figures from which others follow. A finding names them with their values, and one of them leads if its change is as
/// large as the largest.
constexpr std::array<std::string_view, 11> kCauses{"parity.weights_moved",         "parity.shards_moved",
                                                   "parity.ranks_equal",           "parity.gathered_equals_unsharded",
                                                   "parity.bitwise_equal",         "twin.losses_equal",
                                                   "memory.retained_bytes",        "traffic.all_gather_bytes",
                                                   "traffic.reduce_scatter_bytes", "traffic.all_reduce_bytes",
                                                   "memory.weight_bytes"};

struct PhaseOf {
  std::string_view metric, phase;
};
/// In the order of a step. Bytes that outlive backward raise the figures of the next step too, so they come first.
constexpr std::array<PhaseOf, 7> kPhases{{{"memory.retained_bytes", "after backward"},
                                          {"memory.setup_peak_bytes", "from setup on"},
                                          {"memory.forward_peak_bytes", "from forward on"},
                                          {"memory.end_of_forward_bytes", "from forward on"},
                                          {"memory.peak_bytes", "in backward"},
                                          {"memory.end_of_backward_bytes", "in backward"},
                                          {"memory.optimizer_peak_bytes", "in the optimizer"}}};

/// A time is reported if the quartiles of its samples lie apart, and by at least the first ratio; without samples,
/// if the ratio is at least the second.
constexpr double kLeastRatio = 1.1, kLeastRatioWithoutSamples = 1.5;

/// A change is as large as the largest from this part of it on: allocators round.
constexpr double kAsLarge = 0.99;
/// The most figures that a finding names in addition to causes.
constexpr std::size_t kMostNamed = 3;

std::size_t rank_of(const std::string& metric) {
  const auto at = std::find(kCauses.begin(), kCauses.end(), metric);
  return static_cast<std::size_t>(at - kCauses.begin());
}

/// |change| as a fraction of the baseline. Memory is relative to the arm's peak in `was`, so that 1 MiB retained is
/// less than 64 MiB of peak. Other figures are relative to their own value; a figure that was 0 changed without bound.
double relative(const Change& change, const CellRecord* was) {
  if (!change.was || !change.is) return std::numeric_limits<double>::infinity();
  double base = std::abs(*change.was);
  if (was && change.metric.starts_with("memory.") && change.unit == "B")
    for (const auto& [arm, result] : was->arms)
      if (name(arm) == change.arm)
        if (const auto peak = result.metrics.find("memory.peak_bytes"); peak != result.metrics.end())
          base = std::max(base, std::abs(peak->second.value.value_or(0)));
  return std::abs(*change.is - *change.was) / base;
}

/// "layers[3].fc1" and "layers[4].fc1" are one holder.
std::string merged_name(const std::string& holder) {
  std::string out;
  bool inside = false;
  for (const char c : holder) {
    if (c == '[') out += "[*";
    inside = c == '[' || (inside && c != ']');
    if (!inside || c == ']') out += c;
  }
  return out;
}

using Holders = std::vector<std::pair<std::string, std::int64_t>>;

std::map<std::string, std::int64_t> difference(const Holders& was, const Holders& is) {
  std::map<std::string, std::int64_t> out;
  for (const auto& [holder, bytes] : is) out[merged_name(holder)] += bytes;
  for (const auto& [holder, bytes] : was) out[merged_name(holder)] -= bytes;
  return out;
}

/// The holder whose bytes changed most in the direction of `by`.
void name_holder(const ArmResult& was, const ArmResult& is, double by, bool at_peak, Finding& finding) {
  const auto& member = at_peak ? &ArmResult::peak_by_holder : &ArmResult::retained_by_holder;
  for (const auto& [holder, bytes] : difference(was.*member, is.*member)) {
    const bool same_direction = (bytes > 0) == (by > 0);
    if (!same_direction || std::abs(bytes) <= std::abs(finding.holder_bytes)) continue;
    finding.holder = holder;
    finding.holder_bytes = bytes;
  }
}

/// The first phase that accounts for at least half of the bytes by which `leading` changed.
std::string phase_of(const std::vector<const Change*>& changes, const Change& leading) {
  const auto by = [](const Change& change) {
    return change.was && change.is ? std::abs(*change.is - *change.was) : 0.0;
  };
  for (const PhaseOf& row : kPhases)
    for (const Change* change : changes)
      if (change->metric == row.metric && 2 * by(*change) >= by(leading)) return std::string(row.phase);
  return "";
}

std::string by_text(const Change& change) {
  if (!change.was || !change.is) return "lost its value";
  const double by = *change.is - *change.was;
  const std::string absolute = (by < 0 ? "-" : "+") + short_figure(std::abs(by), change.unit);
  if (*change.was == 0) return absolute;
  const double ratio = *change.is / *change.was;
  if (ratio > 10) return fmt::format("{} ({:.3g} times as much)", absolute, ratio);
  return fmt::format("{} ({:+.3g} %)", absolute, 100 * by / std::abs(*change.was));
}

/// "589.5 MiB -> 652.0 MiB"
std::string values_text(const Change& change) {
  const auto text_of_one = [&](const std::optional<double>& value) {
    return value ? short_figure(*value, change.unit) : "no figure";
  };
  if (!change.was || !change.is) return fmt::format("{} -> {}", text_of_one(change.was), text_of_one(change.is));
  const auto [was, is] = short_figures(*change.was, *change.is, change.unit);
  return fmt::format("{} -> {}", was, is);
}

/// The middle half of ascending samples.
std::pair<double, double> middle_half(const std::vector<double>& samples) {
  return {samples[samples.size() / 4], samples[samples.size() * 3 / 4]};
}

struct SlowTime {
  double ratio = 0;
  std::string text;
};

/// The time whose ratio is largest, of those that are slower beyond the spread of their samples.
SlowTime slowest(const CellRecord& was, const CellRecord& is) {
  SlowTime out;
  for (const auto& [arm, before] : was.arms) {
    const auto now = is.arms.find(arm);
    if (now == is.arms.end()) continue;
    for (const auto& [name, value] : before.metrics) {
      const Metric* metric = find_metric(name);
      const auto other = now->second.metrics.find(name);
      if (!metric || metric->exact || other == now->second.metrics.end()) continue;
      if (!value.value || !other->second.value || !(*value.value > 0)) continue;
      const double ratio = *other->second.value / *value.value;
      const auto a = before.samples.find(name), b = now->second.samples.find(name);
      const bool sampled =
          a != before.samples.end() && b != now->second.samples.end() && a->second.size() >= 4 && b->second.size() >= 4;
      std::string spread = "one figure each";
      bool apart = ratio >= kLeastRatioWithoutSamples;
      if (sampled) {
        const auto [low_a, high_a] = middle_half(a->second);
        const auto [low_b, high_b] = middle_half(b->second);
        apart = ratio >= kLeastRatio && low_b > high_a;
        spread = fmt::format("quartiles {:.3g} to {:.3g} and {:.3g} to {:.3g} {}, {} and {} samples", low_a, high_a,
                             low_b, high_b, metric->unit, a->second.size(), b->second.size());
      }
      if (!apart || ratio <= out.ratio) continue;
      out = {ratio,
             fmt::format("{} {} {:.2f} times as long: {} -> {} ({}; not gated)", fp8lab::name(arm), name, ratio,
                         figure(*value.value, metric->unit), figure(*other->second.value, metric->unit), spread)};
    }
  }
  return out;
}

}  // namespace

std::optional<Finding> finding_of(const CellRecord* was, const CellRecord* is, std::span<const Change> changes) {
  const auto any = [&](Direction direction) {
    return std::any_of(changes.begin(), changes.end(), [&](const Change& c) { return c.direction == direction; });
  };
  const SlowTime slow = was && is ? slowest(*was, *is) : SlowTime{};
  Finding out;
  out.direction = any(Direction::kWorse) ? Direction::kWorse : Direction::kBetter;
  if (!any(out.direction) && slow.text.empty()) return std::nullopt;
  if (!any(Direction::kWorse) && !slow.text.empty()) {
    out.direction = Direction::kNeutral;
    out.severity = slow.ratio - 1;
    out.id = is->config.id;
    out.text = slow.text;
    return out;
  }
  std::vector<const Change*> figures;
  const Change* ending = nullptr;  // a change of how the cell ended
  for (const Change& change : changes) {
    if (change.direction != out.direction) continue;
    if (change.metric.empty())
      ending = ending ? ending : &change;
    else if (change.metric != "memory.unexplained_bytes" || figures.empty())
      figures.push_back(&change);
  }
  double largest = 0;
  for (const Change* change : figures) largest = std::max(largest, relative(*change, was));
  // Causes first; among equals the largest change.
  std::stable_sort(figures.begin(), figures.end(), [&](const Change* a, const Change* b) {
    return std::pair(rank_of(a->metric), -relative(*a, was)) < std::pair(rank_of(b->metric), -relative(*b, was));
  });
  const auto leading = std::find_if(figures.begin(), figures.end(),
                                    [&](const Change* change) { return relative(*change, was) >= kAsLarge * largest; });
  const Change* first = leading == figures.end() ? ending : *leading;
  out.id = first->id;
  out.allowed = first->allowed;
  out.metric = first->metric;
  out.arm = first->arm;
  out.was = first->was;
  out.is = first->is;
  out.unit = first->unit;
  // How a cell ended and what it computes come before how much it needs.
  const bool values = std::any_of(figures.begin(), figures.end(), [](const Change* change) {
    return change->metric.starts_with("parity.") || change->metric.starts_with("twin.");
  });
  out.severity = (first->metric.empty() ? 2e9 : values ? 1e9 : 0) + std::min(relative(*first, was), 1e8);
  if (first->metric.empty()) {
    out.text = text_of(*first);
    return out;
  }
  out.text = fmt::format("{} {} {}: {}", first->arm, first->metric, by_text(*first), values_text(*first));
  if (first->metric.starts_with("memory.") && first->was && first->is) {
    out.phase = phase_of(figures, *first);
    for (const Arm arm : kArms)
      if (name(arm) == first->arm && was->arms.contains(arm) && is->arms.contains(arm))
        name_holder(was->arms.at(arm), is->arms.at(arm), *first->is - *first->was,
                    first->metric != "memory.retained_bytes", out);
  }
  if (!out.phase.empty()) out.text += ", " + out.phase;
  if (!out.holder.empty())
    out.text += fmt::format(", held by {} ({}{})", out.holder, out.holder_bytes < 0 ? "-" : "+",
                            short_figure(std::abs(static_cast<double>(out.holder_bytes)), "B"));
  std::vector<std::string> with;  // causes with their figures
  for (const Change* change : figures) {
    if (change == first) continue;
    const std::string name = change->arm == first->arm ? change->metric : change->arm + " " + change->metric;
    out.also.push_back(name);
    if (rank_of(change->metric) < kCauses.size())
      with.push_back(fmt::format("{} {}: {}", name, by_text(*change), values_text(*change)));
    else if (with.size() < kMostNamed)
      with.push_back(name);
  }
  if (!with.empty())
    out.text +=
        fmt::format("; with it {}{}", fmt::join(with, ", "),
                    out.also.size() > with.size() ? fmt::format(" and {} more", out.also.size() - with.size()) : "");
  if (ending) out.text += "; " + text_of(*ending);
  if (!slow.text.empty()) out.text += "; " + slow.text;
  return out;
}

std::string commit_of(const StoredRun& run) {
  const JsonDocument environment(run.environment_json);
  const auto program = environment.root().find("program");
  if (!program) return "";
  const auto dirty = program->find("git_dirty");
  const std::string commit = program->text_or_empty("git_commit").substr(0, 12);
  return commit.empty() ? "" : commit + (dirty && dirty->flag() ? ", modified" : "");
}

RunComparison compare_series(const std::vector<StoredRun>& runs,
                             const std::function<bool(const std::string& id)>& allowed) {
  RunComparison out = compare_runs(runs.front(), runs.back(), allowed);
  const auto key = [](const Finding& finding) {
    return std::tuple(finding.id, finding.metric, finding.arm, finding.direction);
  };
  std::map<std::size_t, std::set<std::tuple<std::string, std::string, std::string, Direction>>> earlier;  // by run
  const auto found_in = [&](std::size_t run, const Finding& finding) {
    const auto [it, added] = earlier.try_emplace(run);
    if (added)
      for (const Finding& other : compare_runs(runs.front(), runs[run], {}).findings) it->second.insert(key(other));
    return it->second.contains(key(finding));
  };
  for (Finding& finding : out.findings) {
    // The first run from which on every run differs from the baseline as the last one does.
    std::size_t since = runs.size() - 1;
    while (since > 1 && found_in(since - 1, finding)) --since;
    const std::string commit = commit_of(runs[since]), before = commit_of(runs[since - 1]);
    if (runs.size() > 2) finding.since = fmt::format("run {}", since + 1);
    if (!commit.empty() && commit != before)
      finding.since += fmt::format("{}commit {}{}", finding.since.empty() ? "" : ", ", commit,
                                   before.empty() ? "" : " (not at " + before + ")");
  }
  return out;
}

}  // namespace fp8lab

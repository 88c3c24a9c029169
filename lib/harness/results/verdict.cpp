#include "harness/results/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "harness/cell/metrics.h"
#include "harness/cell/subject_keys.h"
#include "harness/cell/units.h"
#include "harness/scenario/controls.h"

namespace fp8lab {
namespace {

struct VerdictName {
  Verdict verdict;
  std::string_view name;
};

constexpr std::array kNames{
    VerdictName{Verdict::kConfirmed, "confirmed"},
    VerdictName{Verdict::kUnaffected, "unaffected"},
    VerdictName{Verdict::kNotReproduced, "not_reproduced"},
    VerdictName{Verdict::kNotFixed, "not_fixed"},
    VerdictName{Verdict::kRegressed, "regressed"},
    VerdictName{Verdict::kPass, "pass"},
    VerdictName{Verdict::kFail, "fail"},
    VerdictName{Verdict::kInconclusive, "inconclusive"},
    VerdictName{Verdict::kSkipped, "skipped"},
    VerdictName{Verdict::kCrashed, "crashed"},
    VerdictName{Verdict::kTimeout, "timeout"},
};

Arm arm_of(Side side) { return side == Side::kBefore ? Arm::kBefore : side == Side::kBf16 ? Arm::kBf16 : Arm::kAfter; }

Figure figure_of(const ArmResults& arms, Arm arm, const std::string& metric,
                 std::optional<double> MetricValue::* member) {
  const auto result = arms.find(arm);
  if (result == arms.end()) return {{}, fmt::format("the {} arm did not run", name(arm))};
  const auto entry = result->second.metrics.find(metric);
  const std::string_view what = member == &MetricValue::value ? "value" : "prediction";
  if (entry == result->second.metrics.end()) {
    const std::string ended =
        result->second.status == "ok" ? "" : fmt::format(", which ended {}", result->second.status);
    return {{}, fmt::format("no {} from the {} arm{}", what, name(arm), ended)};
  }
  const std::optional<double>& value = entry->second.*member;
  if (value) return {value, ""};
  const std::string& reason = entry->second.reason;
  return {{},
          member == &MetricValue::value && !reason.empty() ? reason
                                                           : fmt::format("no {} from the {} arm", what, name(arm))};
}

Figure side_figure(const ArmResults& arms, Side side, const std::string& metric,
                   std::optional<double> MetricValue::* member) {
  if (side != Side::kDifference) return figure_of(arms, arm_of(side), metric, member);
  const Figure before = figure_of(arms, Arm::kBefore, metric, member);
  const Figure after = figure_of(arms, Arm::kAfter, metric, member);
  if (!before.value) return before;
  if (!after.value) return after;
  return {*before.value - *after.value, ""};
}

/// True if `observed` satisfies the expectation. NaN never does, because comparisons with NaN are false. Nor does any
/// figure that is compared with an infinite one, such as the loss of an arm that diverged.
bool holds(const Expectation& e, double observed, double limit) {
  if (!std::isfinite(limit)) return false;
  const double slack = std::max(e.abs, e.rel * std::abs(limit));
  switch (e.comparison) {
    case Comparison::kEquals: return std::abs(observed - limit) <= slack;
    case Comparison::kAtLeast: return observed >= limit - slack;
    case Comparison::kAtMost: return observed <= limit + slack;
    case Comparison::kWithin: return observed >= e.low && observed <= e.high;
    case Comparison::kEnds: break;
  }
  return false;
}

bool ended_as(const ArmResult& result, const Expectation& e) {
  return result.status == e.status && (e.signal.empty() || result.signal == e.signal);
}

std::string ending_of(const ArmResult& result) {
  return result.signal.empty() ? result.status : fmt::format("{} by {}", result.status, result.signal);
}

Gate undecided(const Expectation& e) {
  Gate gate;
  gate.text = text_of(e);
  gate.side = e.side;
  gate.metric = e.metric;
  gate.line = e.line;
  return gate;
}

Gate evaluate_ending(const Expectation& e, const ArmResults& arms) {
  Gate gate = undecided(e);
  const auto result = arms.find(arm_of(e.side));
  if (result == arms.end()) {
    gate.detail = fmt::format("the {} arm did not run", name(e.side));
    return gate;
  }
  gate.pass = ended_as(result->second, e);
  gate.detail = "it ended " + ending_of(result->second);
  return gate;
}

Side side_of(Arm arm) { return arm == Arm::kBefore ? Side::kBefore : arm == Arm::kBf16 ? Side::kBf16 : Side::kAfter; }

const std::vector<double>& figures_by_process(const ArmResults& arms, Arm arm, const std::string& metric) {
  static const std::vector<double> none;
  const auto result = arms.find(arm);
  if (result == arms.end()) return none;
  const auto entry = result->second.by_process.find(metric);
  return entry == result->second.by_process.end() ? none : entry->second;
}

/// Decides a gate whose figure and limit are known by the interval of their ratio.
void decide_by_interval(const Expectation& e, const ArmResults& arms, Gate& gate) {
  const auto& figures = figures_by_process(arms, arm_of(e.side), e.metric);
  gate.ratio = ratio_of(figures, figures_by_process(arms, *e.of, e.metric));
  if (!gate.ratio) {
    gate.detail = fmt::format("{} {} gave a figure, and an interval needs {}: give more by --processes",
                              std::max<std::size_t>(figures.size(), 1), figures.size() > 1 ? "processes" : "process",
                              kFewestPairs);
    return;
  }
  const Ratio& ratio = *gate.ratio;
  const bool at_most = e.comparison == Comparison::kAtMost;
  if (at_most ? ratio.high <= e.factor : ratio.low >= e.factor)
    gate.pass = true;
  else if (at_most ? ratio.low > e.factor : ratio.high < e.factor)
    gate.pass = false;
  gate.detail = fmt::format("{:.4g} of {}'s, 99 % interval {:.4g} to {:.4g}, over {} processes each", ratio.value,
                            name(*e.of), ratio.low, ratio.high, ratio.pairs);
  if (!gate.pass)
    gate.detail += fmt::format("; {} lies inside: changes below {:.1f} % do not show here", shortest(e.factor),
                               100 * ratio.visible);
}

Gate evaluate(const Expectation& e, const ArmResults& arms) {
  if (e.comparison == Comparison::kEnds) return evaluate_ending(e, arms);
  Gate gate = undecided(e);
  const Figure observed = measured(arms, e.side, e.metric);
  const Figure limit = e.predicted ? predicted(arms, e.side, e.metric)
                       : e.of      ? measured(arms, side_of(*e.of), e.metric)
                                   : Figure{e.low, ""};
  gate.observed = observed.value;
  gate.limit = limit.value;
  if (e.of && gate.limit) *gate.limit *= e.factor;
  if (e.comparison == Comparison::kWithin && observed.value && *observed.value > e.high) gate.limit = e.high;
  if (!observed.value || !limit.value) {
    gate.detail = !observed.value ? observed.why : limit.why;
    return gate;
  }
  if (is_timed_ratio(e))
    decide_by_interval(e, arms, gate);
  else
    gate.pass = holds(e, *observed.value, *gate.limit);
  return gate;
}

/// "; " and the reason that came with a figure, such as its tensor, and that BF16 measures the same; empty if there
/// is nothing to report.
std::string because(const Expectation& e, const ArmResults& arms) {
  if (e.side == Side::kDifference) return {};
  const auto arm = arms.find(arm_of(e.side));
  if (arm == arms.end()) return {};
  const auto metric = arm->second.metrics.find(e.metric);
  if (metric == arm->second.metrics.end()) return {};
  const std::optional<double> in_bf16 = measured(arms, Side::kBf16, e.metric).value;
  return (metric->second.reason.empty() ? "" : "; " + metric->second.reason) +
         (e.side != Side::kBf16 && in_bf16 && in_bf16 == metric->second.value ? "; BF16 measures the same" : "");
}

/// "after memory.retained_bytes equals 0: 65.5 MiB (68,681,728 B)"
std::string complaint(const Gate& gate, const Expectation& e, const ArmResults& arms) {
  if (!gate.detail.empty()) return fmt::format("{}: {}", gate.text, gate.detail);
  const Metric* metric = find_metric(e.metric);
  const std::string_view unit = metric ? metric->unit : "1";
  std::string limit;
  if (gate.limit && (e.predicted || e.of))
    limit = fmt::format(", {} {}",
                        e.predicted     ? "predicted"
                        : e.factor == 1 ? name(*e.of)
                                        : "limit",
                        figure(*gate.limit, unit));
  else if (gate.limit && unit == "B" && e.unit.empty() && std::abs(*gate.limit) >= 1024)
    limit = ", limit " + short_figure(*gate.limit, unit);
  return fmt::format("{}: measured {}{}{}", gate.text, gate.observed ? figure(*gate.observed, unit) : "nothing", limit,
                     because(e, arms));
}

/// "; 2 more gates fail: after parity.loss_gap, before memory.peak_bytes", of those that `reason` is not about.
std::string others_failing(const std::vector<Gate>& gates, const std::string& reason) {
  constexpr std::size_t kMostNames = 3;
  std::vector<std::string> others;
  bool is_named = false;
  for (const Gate& gate : gates) {
    if (gate.pass != false) continue;
    if (!is_named && reason.starts_with(gate.text))
      is_named = true;
    else
      others.push_back(gate.metric.empty() ? gate.text : fmt::format("{} {}", name(gate.side), gate.metric));
  }
  if (others.empty()) return {};
  const std::size_t more = others.size();
  if (more > kMostNames) others.resize(kMostNames);
  return fmt::format("; {} more {}: {}{}", more, more == 1 ? "gate fails" : "gates fail", fmt::join(others, ", "),
                     more > kMostNames ? ", ..." : "");
}

/// A message about an arm with status timeout (`timeouts`), or else with another status than ok and timeout, that no
/// expectation allows; "" if there is none.
std::string unexpected_end(const ArmResults& arms, const std::vector<Expectation>& expectations, bool timeouts) {
  for (const auto& [arm, result] : arms) {
    if (result.status == "ok" || (result.status == "timeout") != timeouts) continue;
    const bool expected =
        std::any_of(expectations.begin(), expectations.end(), [&, a = arm, &r = result](const Expectation& e) {
          return e.comparison == Comparison::kEnds && arm_of(e.side) == a && ended_as(r, e);
        });
    if (expected) continue;
    const std::string end = result.reason.empty() ? fmt::format("{} ended {}", name(arm), ending_of(result))
                                                  : fmt::format("{}: {}", name(arm), result.reason);
    if (result.status == "timeout") return end + "; `timeout` or --timeout gives it longer";
    if (result.status != "out_of_memory") return end;
    // Arms that after is compared with often need more memory than there is.
    return arm == Arm::kAfter
               ? end + "; `fp8lab plan` predicts what fits"
               : fmt::format("{}; if it should end so, expect it by `{{arm: {}, status: out_of_memory}}`", end,
                             name(arm));
  }
  return "";
}

/// True if an expectation that holds states the figure of after exactly, itself or by its difference from before. A
/// figure that is worse and stated so is the fix's price, not a regression.
bool is_stated(const std::string& metric, const std::vector<Expectation>& expectations,
               const std::vector<Gate>& gates) {
  for (std::size_t i = 0; i < expectations.size(); ++i) {
    const Expectation& e = expectations[i];
    if (e.metric == metric && e.comparison == Comparison::kEquals && !e.of && e.abs == 0 && e.rel == 0 &&
        (e.side == Side::kAfter || e.side == Side::kDifference) && gates[i].pass == true)
      return true;
  }
  return false;
}

/// The first exact metric of the expectations in which after is worse than before by more than its slack although no
/// expectation states it, or "".
std::string regression(const ArmResults& arms, const std::vector<Expectation>& expectations,
                       const std::vector<Gate>& gates) {
  for (const Expectation& e : expectations) {
    const Metric* metric = find_metric(e.metric);
    if (e.of_group || !metric || !metric->exact || metric->better == Better::kNeither) continue;
    if (is_stated(e.metric, expectations, gates)) continue;
    const Figure before = measured(arms, Side::kBefore, e.metric);
    const Figure after = measured(arms, Side::kAfter, e.metric);
    if (!before.value || !after.value) continue;
    const double worse_by =
        metric->better == Better::kLess ? *after.value - *before.value : *before.value - *after.value;
    // The comparison is false for NaN, which fails its gates instead.
    if (worse_by > std::max(metric->slack_abs, metric->slack_rel * std::abs(*before.value)))
      return fmt::format("{} is worse after ({}) than before ({})", e.metric, figure(*after.value, metric->unit),
                         figure(*before.value, metric->unit));
  }
  return "";
}

bool speaks_of(Side side, Side of) { return side == of || side == Side::kDifference; }

/// True for a figure in decibels that is absent because the values are BF16's, bit for bit: it is infinite.
bool has_no_noise(const Figure& figure) { return !figure.value && figure.why.ends_with("no noise"); }

/// True if the figures of a metric show that before and after differ.
bool shows_difference(const ArmResults& arms, const std::string& metric) {
  const Figure of_before = measured(arms, Side::kBefore, metric), of_after = measured(arms, Side::kAfter, metric);
  const std::optional<double> before = of_before.value, after = of_after.value;
  if (metric == "parity.bitwise_equal") return before == 0;  // before's figure only, which compares it with after
  if (before.has_value() != after.has_value()) return has_no_noise(before ? of_after : of_before);
  const Metric* known = find_metric(metric);
  return before && after && *before != *after && (!known || known->exact);
}

/// True if before and after end differently, or if an expectation's figures differ between them: those that are the
/// same in every run in any bit, times beyond the interval of their ratio.
bool arms_differ(const ArmResults& arms, const std::vector<Expectation>& expectations, const std::vector<Gate>& gates) {
  const auto before = arms.find(Arm::kBefore), after = arms.find(Arm::kAfter);
  if (before == arms.end() || after == arms.end()) return true;
  if (before->second.status != after->second.status) return true;
  return std::any_of(expectations.begin(), expectations.end(),
                     [&](const Expectation& e) {
                       return !e.of_group && !e.metric.empty() && shows_difference(arms, e.metric);
                     }) ||
         std::any_of(gates.begin(), gates.end(),
                     [](const Gate& gate) { return gate.ratio && (gate.ratio->low > 1 || gate.ratio->high < 1); });
}

}  // namespace

std::string_view name(Verdict verdict) {
  for (const VerdictName& row : kNames)
    if (row.verdict == verdict) return row.name;
  return "?";
}

std::optional<Verdict> parse_verdict(std::string_view text) {
  for (const VerdictName& row : kNames)
    if (row.name == text) return row.verdict;
  return std::nullopt;
}

bool is_timed_ratio(const Expectation& e) {
  const Metric* metric = find_metric(e.metric);
  return e.of && metric && !metric->exact;
}

bool needs_more_processes(const Expectation& expectation, const Gate& gate) {
  return is_timed_ratio(expectation) && gate.observed && gate.limit && !gate.pass;
}

bool is_good(Verdict verdict) {
  return verdict == Verdict::kConfirmed || verdict == Verdict::kUnaffected || verdict == Verdict::kPass ||
         verdict == Verdict::kSkipped;
}

bool is_undecided_control(std::string_view id, Verdict verdict, const std::vector<Gate>& gates) {
  const auto is_decided = [](const Gate& gate) { return gate.pass.has_value(); };
  return verdict == Verdict::kInconclusive && is_control(id) && !std::ranges::all_of(gates, is_decided) &&
         std::ranges::all_of(gates,
                             [&](const Gate& gate) { return is_decided(gate) || (gate.observed && gate.limit); });
}

Figure measured(const ArmResults& arms, Side side, const std::string& metric) {
  return side_figure(arms, side, metric, &MetricValue::value);
}

Figure predicted(const ArmResults& arms, Side side, const std::string& metric) {
  return side_figure(arms, side, metric, &MetricValue::predicted);
}

Judgement judge(const CellConfig& cell, const ArmResults& arms, const std::vector<Expectation>& expectations) {
  Judgement out;
  const bool has_fix = has_before(cell);
  std::string after_fails, other_fails, undecided, slower;
  bool before_covered = false, after_covered = false;
  for (const Expectation& e : expectations) {
    Gate gate = evaluate(e, arms);
    if (e.predicted && gate.observed && !gate.limit && is_library(cell))
      gate.detail = fmt::format("{} of `subject: {}` has no closed form; compare with a number or with bf16", e.metric,
                                cell.subject);
    before_covered = before_covered || speaks_of(e.side, Side::kBefore) || e.of == Arm::kBefore;
    after_covered = after_covered || speaks_of(e.side, Side::kAfter) || e.of == Arm::kAfter;
    const bool of_before = is_timed_ratio(e) && e.of == Arm::kBefore;
    std::string& slot = !gate.pass               ? undecided
                        : of_before              ? slower
                        : e.side == Side::kAfter ? after_fails
                                                 : other_fails;
    if (gate.pass != true && slot.empty()) slot = complaint(gate, e, arms);
    out.gates.push_back(std::move(gate));
  }
  if (has_fix && undecided.empty() && !(before_covered && after_covered))
    undecided = fmt::format("no expectation covers the {} arm of this cell", before_covered ? "after" : "before");

  const std::string timeout = unexpected_end(arms, expectations, true);
  const std::string crash = unexpected_end(arms, expectations, false);
  std::string worse = has_fix ? regression(arms, expectations, out.gates) : "";
  if (worse.empty()) worse = slower;
  const std::pair<const std::string&, Verdict> ladder[] = {
      {timeout, Verdict::kTimeout},
      {crash, Verdict::kCrashed},
      {worse, Verdict::kRegressed},
      {after_fails, has_fix ? Verdict::kNotFixed : Verdict::kFail},
      {other_fails, has_fix ? Verdict::kNotReproduced : Verdict::kFail},
      {undecided, Verdict::kInconclusive},
  };
  out.verdict = !has_fix                                     ? Verdict::kPass
                : arms_differ(arms, expectations, out.gates) ? Verdict::kConfirmed
                                                             : Verdict::kUnaffected;
  for (const auto& [reason, verdict] : ladder) {
    if (reason.empty()) continue;
    out.verdict = verdict;
    out.reason = reason + others_failing(out.gates, reason);
    break;
  }
  return out;
}

int exit_code(const RunOutcome& outcome) {
  if (outcome.bad_usage) return 2;
  if (outcome.interrupted_by != 0) return 128 + outcome.interrupted_by;
  const auto any = [&](auto... wanted) {
    return std::any_of(outcome.verdicts.begin(), outcome.verdicts.end(),
                       [&](Verdict v) { return ((v == wanted) || ...); });
  };
  if (outcome.ranks_lost || any(Verdict::kCrashed)) return 4;
  if (any(Verdict::kTimeout)) return 124;
  if (any(Verdict::kNotReproduced, Verdict::kNotFixed, Verdict::kRegressed, Verdict::kFail)) return 1;
  if (any(Verdict::kInconclusive) || outcome.fix_unseen) return 3;
  if (!any(Verdict::kConfirmed, Verdict::kUnaffected, Verdict::kPass)) return 5;
  return 0;
}

std::string_view exit_code_meaning(int code) {
  switch (code) {
    case 0: return "every cell that ran came out as its scenario expects";
    case 1: return "cells did not come out as their scenarios expect";
    case 2: return "results cannot be written";
    case 3: return "inconclusive, or a fix that no cell shows";
    case 4: return "a crash that no scenario expected";
    case 5: return "nothing ran";
    case 124: return "cells took longer than their time limit";
    default: return code > 128 ? "interrupted" : "unknown";
  }
}

}  // namespace fp8lab

#include "harness/results/effect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"

namespace fp8lab {
namespace {

struct Phrase {
  std::string_view metric;
  std::string_view words;  ///< follow the figure
};

constexpr Phrase kPhrases[] = {
    {"memory.peak_bytes", "at the peak"},
    {"memory.setup_peak_bytes", "at the peak of setup"},
    {"memory.forward_peak_bytes", "at the peak of forward"},
    {"memory.optimizer_peak_bytes", "at the peak of the optimizer's step"},
    {"memory.reserved_peak_bytes", "reserved at the peak"},
    {"memory.end_of_forward_bytes", "alive at the end of forward"},
    {"memory.end_of_backward_bytes", "alive at the end of backward"},
    {"memory.end_of_step_bytes", "alive at the end of the step"},
    {"memory.weight_bytes", "of weights"},
    {"memory.host_copies_peak_bytes", "of host copies"},
    {"memory.retained_bytes", "retained after backward"},
    {"traffic.all_gather_bytes", "all-gathered in a step"},
    {"traffic.all_gather_payload_bytes", "of values all-gathered in a step"},
    {"traffic.all_gather_scale_bytes", "of scales all-gathered in a step"},
    {"traffic.reduce_scatter_bytes", "reduce-scattered in a step"},
    {"traffic.all_reduce_bytes", "all-reduced in a step"},
    {"traffic.ring_exchange_bytes", "exchanged around the ring in a step"},
    {"traffic.all_to_all_bytes", "sent to experts and back in a step"},
    {"traffic.all_to_all_scale_bytes", "sent to experts in a step as scales"},
    {"traffic.collectives", "collectives in a step"},
    {"host.pre_forward_allocations", "heap allocations before the first kernel"},
    {"host.pre_forward_quantizer_copies", "quantizer copies before the first kernel"},
    {"host.fusion_plans", "plans of fused chains made in a step"},
    {"host.pre_forward_python_calls", "Python calls before the layer's own work"},
    {"host.pre_forward_python_objects", "Python objects before the layer's own work"},
    {"host.pre_forward_ns", "of host time before the first kernel"},
    {"parity.weights_moved", "of weight tensors moved"},
    {"parity.shards_moved", "of shards moved"},
    {"reference.faults", "tensors out of their bounds"},
    {"time.step_ms", "a step"},
    {"time.forward_ms", "a forward"},
    {"time.backward_ms", "a backward"},
    {"time.optimizer_ms", "an optimizer's step"},
};

struct FlagWords {
  std::string_view metric, zero, one;
};

constexpr FlagWords kFlags[] = {
    {"parity.ranks_equal", "ranks have different weights", "equal weights"},
    {"parity.gathered_equals_unsharded", "gathered shards differ from the unsharded parameter", "equal"},
    {"twin.losses_equal", "losses differ from the twin's", "equal losses"},
};

std::string phrase_of(const std::string& metric) {
  for (const auto& [prefix, when] : {std::pair{std::string_view("memory.by_holder."), "after backward"},
                                     std::pair{std::string_view("memory.forward_by_holder."), "at the end of forward"}})
    if (metric.starts_with(prefix)) return fmt::format("held by {} {}", metric.substr(prefix.size()), when);
  const auto row = std::ranges::find(kPhrases, metric, &Phrase::metric);
  return row == std::end(kPhrases) ? std::string() : std::string(row->words);
}

std::pair<std::string, std::string> figures_of(double before, double after, const std::string& metric,
                                               std::string_view unit) {
  if (!std::isfinite(before) || !std::isfinite(after)) {
    const auto one = [&](double value) {
      return std::isfinite(value) ? short_figure(value, unit) : fmt::format("{}", value);
    };
    return {one(before), one(after)};
  }
  if (metric.ends_with("s_moved")) return {fmt::format("{:.4g} %", 100 * before), fmt::format("{:.4g} %", 100 * after)};
  auto out = short_figures(before, after, unit);
  if (before == 0) out.first = "0";
  if (after == 0) out.second = "0";
  return out;
}

std::string words_of(double before, double after, const std::string& metric, std::string_view unit) {
  const auto flag = std::ranges::find(kFlags, metric, &FlagWords::metric);
  if (flag != std::end(kFlags) && (before == 0 || before == 1) && (after == 0 || after == 1))
    return fmt::format("{} -> {}", before == 0 ? flag->zero : flag->one, after == 0 ? flag->zero : flag->one);
  const auto [was, is] = figures_of(before, after, metric, unit);
  const std::string phrase = phrase_of(metric);
  return phrase.empty() ? fmt::format("{} {} -> {}", metric, was, is) : fmt::format("{} {} -> {}", was, phrase, is);
}

std::optional<double> finite(double value) {
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

/// The difference as a fraction of the larger figure; 1 if one of the two is not finite.
double relative(double before, double after) {
  const double largest = std::max(std::abs(before), std::abs(after));
  return std::isfinite(before) && std::isfinite(after) ? std::abs(before - after) / largest : 1;
}

/// "SIGSEGV", "out of memory", "error (masters have another shape)", "works"
std::string ending_words(const ArmResult& result) {
  constexpr std::size_t kLongestReason = 90;
  if (!result.signal.empty()) return result.signal;
  if (result.status == "ok") return "works";
  std::string words = result.status;
  std::ranges::replace(words, '_', ' ');
  if (result.status != "error" || result.reason.empty()) return words;
  return fmt::format("{} ({})", words, shortened(result.reason, kLongestReason));
}

constexpr double kOutOfMemory = 1;

double severity_of_ending(const ArmResult& result) {
  if (!result.signal.empty()) return 4;
  if (result.status == "crashed" || result.status == "error") return 3;
  return result.status == "timeout" ? 2 : kOutOfMemory;
}

std::optional<Effect> effect_on_ending(const ArmResult& before, const ArmResult& after) {
  if (before.status == after.status && before.signal == after.signal) return std::nullopt;
  Effect out;
  out.kind = EffectKind::kEnding;
  out.text = fmt::format("{} -> {}", ending_words(before), ending_words(after));
  out.size = std::max(severity_of_ending(before), severity_of_ending(after));
  return out;
}

EffectKind kind_of(const Metric& metric, bool describes_defect) {
  if (!metric.exact) return EffectKind::kTime;
  if (metric.is_of_values()) return describes_defect ? EffectKind::kParity : EffectKind::kValues;
  if (metric.group() == "traffic") return EffectKind::kTraffic;
  return metric.group() == "memory" ? EffectKind::kBytes : EffectKind::kHost;
}

std::optional<double> value_in(const ArmResult& arm, const std::string& metric,
                               std::optional<double> MetricValue::* member) {
  const auto found = arm.metrics.find(metric);
  return found == arm.metrics.end() ? std::nullopt : found->second.*member;
}

std::optional<Effect> effect_in(const ArmResult& before, const ArmResult& after, const Gate& gate,
                                bool describes_defect) {
  const Metric* metric = find_metric(gate.metric);
  if (!metric || metric->better == Better::kNeither || gate.metric == "memory.unexplained_bytes") return std::nullopt;
  const std::optional<double> was = value_in(before, gate.metric, &MetricValue::value);
  const std::optional<double> is = value_in(after, gate.metric, &MetricValue::value);
  Effect out;
  out.metric = gate.metric;
  out.unit = metric->unit;
  out.kind = kind_of(*metric, describes_defect);
  if (gate.metric == "parity.bitwise_equal") {  // a figure of before, which is compared with after
    if (was != 0) return std::nullopt;
    out.before = was;
    out.kind = EffectKind::kValues;
    out.text = "before and after hold different values";
    out.size = 1;
    return out;
  }
  if (!was || !is || *was == *is || (std::isnan(*was) && std::isnan(*is))) return std::nullopt;
  if (!metric->exact && !(gate.ratio && (gate.ratio->low > 1 || gate.ratio->high < 1))) return std::nullopt;
  if (out.kind == EffectKind::kParity && std::isfinite(*was) && std::isfinite(*is) &&
      std::abs(*was - *is) <= std::max(metric->slack_abs, metric->slack_rel * std::min(std::abs(*was), std::abs(*is))))
    out.kind = EffectKind::kValues;
  out.before = finite(*was);
  out.after = finite(*is);
  out.predicted = value_in(before, gate.metric, &MetricValue::predicted);
  out.as_predicted =
      out.predicted && out.predicted == was && value_in(after, gate.metric, &MetricValue::predicted) == is;
  const bool counts =
      out.kind == EffectKind::kBytes || out.kind == EffectKind::kTraffic || out.kind == EffectKind::kHost;
  out.size = counts && out.before && out.after ? std::abs(*was - *is) : relative(*was, *is);
  out.text = words_of(*was, *is, gate.metric, metric->unit);
  if (gate.ratio)
    out.text += fmt::format(" ({:.4g} of before's, 99 % interval {:.4g} to {:.4g})", gate.ratio->value, gate.ratio->low,
                            gate.ratio->high);
  const bool is_worse = metric->better == Better::kLess ? *is > *was : *is < *was;
  if (is_worse && out.unit == "B" && out.before && out.after)
    out.text += fmt::format(", {} more, as expected", short_figure(*is - *was, "B"));
  return out;
}

int rank_of(const Effect& effect) {
  switch (effect.kind) {
    // How much memory there is decides whether bytes end an arm, so the bytes come first.
    case EffectKind::kEnding: return effect.size > kOutOfMemory ? 0 : 3;
    case EffectKind::kParity: return 1;
    case EffectKind::kBytes:
    case EffectKind::kTraffic:
    case EffectKind::kHost: return effect.unit == "B" ? 2 : 3;
    case EffectKind::kValues: return 4;
    case EffectKind::kTime: return 5;
  }
  return 6;
}

}  // namespace

std::string_view name(EffectKind kind) {
  switch (kind) {
    case EffectKind::kEnding: return "ending";
    case EffectKind::kParity: return "parity";
    case EffectKind::kBytes: return "bytes";
    case EffectKind::kTraffic: return "traffic";
    case EffectKind::kHost: return "host";
    case EffectKind::kValues: return "values";
    case EffectKind::kTime: return "time";
  }
  return "?";
}

bool is_larger(const Effect& a, const Effect& b) {
  return std::tuple(rank_of(a), -a.size) < std::tuple(rank_of(b), -b.size);
}

std::optional<Effect> effect_of(const ArmResults& arms, const std::vector<Gate>& gates) {
  const auto before = arms.find(Arm::kBefore), after = arms.find(Arm::kAfter);
  if (before == arms.end() || after == arms.end()) return std::nullopt;
  std::optional<Effect> largest = effect_on_ending(before->second, after->second);
  for (const Gate& gate : gates) {
    const bool describes_defect = std::ranges::any_of(gates, [&](const Gate& other) {
      return other.metric == gate.metric && (other.side == Side::kBefore || other.side == Side::kDifference);
    });
    std::optional<Effect> effect = effect_in(before->second, after->second, gate, describes_defect);
    if (effect && (!largest || is_larger(*effect, *largest))) largest = std::move(effect);
  }
  return largest;
}

}  // namespace fp8lab

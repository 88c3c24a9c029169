#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/scenario/scenario_reader.h"

namespace fp8lab {
namespace {

/// A metric in the unit of fractions, for amounts that are fractions whatever the metric.
constexpr std::string_view kFraction = "parity.loss_gap";

struct ComparisonKey {
  std::string_view key;
  Comparison comparison;
};

constexpr std::array kComparisons{
    ComparisonKey{"equals", Comparison::kEquals},
    ComparisonKey{"at_least", Comparison::kAtLeast},
    ComparisonKey{"at_most", Comparison::kAtMost},
    ComparisonKey{"within", Comparison::kWithin},
};

std::string read_metric(const NodeReader& reader, const YamlNode& item, const std::string& where,
                        const EntryContext& context) {
  const YamlNode& node = reader.required(item, "metric", where).value;
  const std::string metric = reader.text(node, where + ".metric");
  const Metric* row = find_metric(metric);
  if (!row || metric.ends_with('*')) {
    std::vector<std::string> known;
    for (const Metric& candidate : metrics()) known.emplace_back(candidate.name);
    reader.refuse(node.place, fmt::format("`{}.metric`: no metric is called `{}`.{}", where, quotable(metric),
                                          suggestion(metric, known)));
  }
  if (context.measure && std::ranges::find(*context.measure, row->group()) == context.measure->end())
    reader.refuse(node.place, fmt::format("`{}.metric`: `{}` is not measured here; add `{}` to `measure`", where,
                                          metric, row->group()));
  return metric;
}

Side read_side(const NodeReader& reader, const YamlNode& item, const std::string& where, const EntryContext& context) {
  const YamlEntry* entry = item.find("arm");
  if (!entry) {
    // A plain cell has one arm in addition to BF16, so `arm` has a default. A cell with a before arm has two, and
    // guessing one would be wrong.
    if (!context.has_before.value_or(false)) return Side::kAfter;
    reader.refuse(item.place, fmt::format("`{}.arm` is missing; write before, after, bf16 or difference", where));
  }
  std::vector<std::string> names;
  for (const Side side : kSides) names.emplace_back(name(side));
  const std::string word = reader.one_of(entry->value, where + ".arm", names);
  const Side side = *std::find_if(kSides.begin(), kSides.end(), [&](Side s) { return name(s) == word; });
  if (context.has_before == false && (side == Side::kBefore || side == Side::kDifference))
    reader.refuse(
        entry->value.place,
        fmt::format("`{}.arm`: `{}` needs `fix`, `versions.before` or `control`, and this scenario has none of them",
                    where, word));
  return side;
}

Condition read_condition(const NodeReader& reader, const YamlEntry& entry, const std::string& where,
                         const EntryContext& context) {
  Condition condition;
  for (const YamlEntry& term : reader.as_map(entry, where).entries) {
    const Key* key = find_key(term.key);
    if (!context.knows_axes) continue;
    const auto known = std::find_if(context.axes.begin(), context.axes.end(), [&](const auto& known_axis) {
      return key && find_key(known_axis.axis.name) == key;
    });
    if (known == context.axes.end())
      reader.refuse(
          term.place,
          fmt::format("`{}.{}`: the matrix has no axis of this name.{}", where, quotable(term.key),
                      context.axes.empty() ? " It has none at all." : suggestion(term.key, context.axis_names)));
    const std::string path = where + "." + term.key;
    std::vector<std::string> values;
    const auto add = [&](const YamlNode& node) {
      const std::string value = to_text(reader.value(*key, node, path));
      if (!known->values.contains(value))
        reader.refuse(node.place,
                      fmt::format("`{}`: the axis never is {}.{}", path, value, suggestion(value, known->axis.values)));
      values.push_back(value);
    };
    if (term.value.is_list()) {
      for (const YamlNode& item : reader.as_list(term, path)) add(item);
    } else {
      add(term.value);
    }
    condition.terms.emplace_back(known->axis.name, std::move(values));
  }
  if (context.knows_axes && context.points.matching(condition.terms).empty())
    reader.refuse(entry.place, fmt::format("`{}` holds in no cell of the matrix", where));
  return condition;
}

Condition optional_condition(const NodeReader& reader, const YamlNode& item, const std::string& where,
                             const EntryContext& context) {
  const YamlEntry* entry = item.find("when");
  return entry ? read_condition(reader, *entry, where + ".when", context) : Condition{};
}

/// A number with or without a unit, as `6 GiB`, in the unit of the metric, and the unit that is written. Nothing if the
/// text is none; throws for a unit that the metric does not have. `metric`: empty if it could not be read.
std::optional<std::pair<double, std::string>> amount_of(const NodeReader& reader, const YamlNode& node,
                                                        const std::string& where, std::string_view metric) {
  if (!node.is_scalar() || node.quoted) return std::nullopt;
  const std::size_t end = std::min(node.text.find_first_not_of("0123456789.eE+-"), node.text.size());
  const auto number = decimal_number(node.text.substr(0, end));
  if (!number) return std::nullopt;
  const std::string unit = node.text.substr(std::min(node.text.find_first_not_of(' ', end), node.text.size()));
  if (unit.empty() || metric.empty()) return std::pair(*number, unit);
  const std::string_view base = find_metric(metric)->unit;
  const auto factor = in_base_units(unit, base);
  if (!factor)
    reader.refuse(node.place, fmt::format("`{}`: {} is not in `{}`; write a number without a unit, or in {}", where,
                                          metric, quotable(unit), listed(units_of(base))));
  return std::pair(*number * *factor, unit);
}

double read_tolerance(const NodeReader& reader, const YamlNode& item, const std::string& key, std::string_view metric) {
  const YamlEntry* entry = item.find(key);
  if (!entry) return 0;
  const auto amount = amount_of(reader, entry->value, "expect." + key, metric);
  const double value = amount ? amount->first : reader.number(entry->value, "expect." + key);
  if (value < 0)
    reader.refuse(entry->value.place,
                  fmt::format("`expect.{}` must not be negative, but is {}", key, entry->value.text));
  return value;
}

/// Reads a limit that is another arm's figure, `before`, or a multiple of it, `1.05 of before`; false if the entry is
/// neither. `side`: of the expectation, and `out.metric`: absent if they could not be read.
bool read_relative_limit(const NodeReader& reader, const YamlEntry& entry, const std::string& where,
                         const EntryContext& context, std::optional<Side> side, Expectation& out) {
  if (!entry.value.is_scalar() || entry.value.quoted) return false;
  constexpr std::string_view kOf = " of ";
  const std::string& text = entry.value.text;
  const std::size_t split = text.find(kOf);
  const std::string word = split == std::string::npos ? text : text.substr(split + kOf.size());
  const auto arm = std::find_if(kArms.begin(), kArms.end(), [&](Arm a) { return name(a) == word; });
  if (arm == kArms.end()) return false;
  if (split != std::string::npos) {
    const auto factor = decimal_number(text.substr(0, split));
    if (!factor || !(*factor > 0))
      reader.refuse(entry.value.place, fmt::format("`{}`: `{}` must begin with a number above 0 (`1.05 of before`)",
                                                   where, quotable(text)));
    out.factor = *factor;
  }
  if (side && (side == Side::kDifference || name(*side) == name(*arm)))
    reader.refuse(entry.value.place, fmt::format("`{}`: the {} side is not compared with the {} arm; name two arms",
                                                 where, name(*side), name(*arm)));
  if (*arm == Arm::kBefore && context.has_before == false)
    reader.refuse(
        entry.value.place,
        fmt::format("`{}`: `before` needs `fix`, `versions.before` or `control`, and this scenario has none of them",
                    where));
  if (!out.metric.empty() && !find_metric(out.metric)->exact && out.comparison == Comparison::kEquals)
    reader.refuse(entry.place,
                  fmt::format("`{}`: no two runs give the same {}; write at_most or at_least", where, out.metric));
  out.of = *arm;
  return true;
}

void read_limit(const NodeReader& reader, const YamlEntry& entry, const EntryContext& context, std::optional<Side> side,
                Expectation& out) {
  const std::string where = "expect." + entry.key;
  if (out.comparison == Comparison::kWithin) {
    if (!entry.value.is_list() || entry.value.items.size() != 2)
      reader.refuse(entry.place, fmt::format("`{}` must be a list of two numbers (`[low, high]`), but is {}", where,
                                             described(entry.value)));
    for (double* bound : {&out.low, &out.high}) {
      const YamlNode& item = entry.value.items[bound == &out.high];
      const auto amount = amount_of(reader, item, where, out.metric);
      if (!amount)
        reader.refuse(item.place,
                      fmt::format("`{}` must be two numbers, with or without a unit (`6 GiB`), but one is {}", where,
                                  described(item)));
      *bound = amount->first;
      out.unit = amount->second;
    }
    if (out.low > out.high)
      reader.refuse(entry.place, fmt::format("`{}`: the lower bound {} is above the upper one {}", where,
                                             shortest(out.low), shortest(out.high)));
    return;
  }
  if (entry.value.is_scalar() && !entry.value.quoted && entry.value.text == "predicted") {
    const Metric* const metric = find_metric(out.metric);
    if (metric && !metric->is_predicted())
      reader.refuse(entry.value.place,
                    fmt::format("`{}`: {} has no closed form (`fp8lab metrics` names those that have); "
                                "give a number, or an arm to compare with (`1.05 of before`)",
                                where, out.metric));
    out.predicted = true;
    return;
  }
  if (read_relative_limit(reader, entry, where, context, side, out)) return;
  const auto amount = amount_of(reader, entry.value, where, out.metric);
  if (!amount)
    reader.refuse(entry.value.place,
                  fmt::format("`{}` must be a number, with or without a unit (`6 GiB`), the word predicted, an arm "
                              "(`before`) or a multiple of one (`1.05 of before`), but is {}",
                              where, described(entry.value)));
  std::tie(out.low, out.unit) = *amount;
}

void read_ending(const NodeReader& reader, const YamlNode& item, Expectation& out) {
  out.comparison = Comparison::kEnds;
  if (out.side == Side::kDifference)
    reader.refuse(item.place, "`expect.status`: a difference does not end; name the arm before, after or bf16");
  out.status = reader.one_of(item.find("status")->value, "expect.status", arm_statuses());
  if (const YamlEntry* entry = item.find("signal")) {
    if (out.status != "crashed") reader.refuse(entry->place, "`expect.signal` goes with `status: crashed` only");
    out.signal = reader.one_of(entry->value, "expect.signal", expected_signals());
  }
}

/// Reads the comparison of `item`, its limit and its tolerances.
void read_comparison(const NodeReader& reader, const YamlNode& item, const EntryContext& context,
                     std::optional<Side> side, Expectation& out) {
  const YamlEntry* limit = nullptr;
  for (const ComparisonKey& row : kComparisons) {
    const YamlEntry* entry = item.find(row.key);
    if (!entry) continue;
    if (limit)
      reader.refuse(entry->place, fmt::format("`expect` entries compare once, but this one has `{}` and `{}`",
                                              limit->key, entry->key));
    limit = entry;
    out.comparison = row.comparison;
  }
  if (!limit)
    reader.refuse(item.place,
                  "this entry of `expect` compares nothing; write one of equals, at_least, at_most or within");
  read_limit(reader, *limit, context, side, out);
  out.abs = read_tolerance(reader, item, "abs", out.metric);
  out.rel = read_tolerance(reader, item, "rel", kFraction);
  if (!item.find("abs") && !item.find("rel")) return;
  if (out.of && !out.metric.empty() && !find_metric(out.metric)->exact)
    reader.refuse(limit->place, "the interval of a timed ratio already is a tolerance; drop `abs` and `rel`");
  if (out.comparison == Comparison::kWithin)
    reader.refuse(limit->place, "`expect.within` already is a tolerance; drop `abs` and `rel`");
}

/// The figure that key `otherwise` of the entry `of` gives to cells in which no entry about its metric and arm holds.
Expectation read_otherwise(const NodeReader& reader, const YamlEntry& entry, const Expectation& of,
                           const std::vector<Expectation>& others) {
  if (of.when.terms.empty())
    reader.refuse(entry.place,
                  "`expect.otherwise` has no effect: the entry holds in every cell; add `when`, or remove `otherwise`");
  const auto is_of_the_same = [&](const Expectation& e) { return e.metric == of.metric && e.side == of.side; };
  if (std::ranges::any_of(others, is_of_the_same))
    reader.refuse(entry.place, fmt::format("`expect.otherwise` of {} {} is given twice", name(of.side), of.metric));
  const auto amount = amount_of(reader, entry.value, "expect.otherwise", of.metric);
  if (!amount)
    reader.refuse(entry.value.place,
                  fmt::format("`expect.otherwise` must be a number, with or without a unit (`6 GiB`), but is {}",
                              described(entry.value)));
  Expectation out;
  out.side = of.side;
  out.metric = of.metric;
  std::tie(out.low, out.unit) = *amount;
  out.line = of.line;
  return out;
}

Expectation read_for_one_arm(const NodeReader& reader, const YamlNode& entry, const EntryContext& context) {
  Mistakes mistakes;
  const auto read = [&](const auto& piece) { return mistakes.collect(piece); };
  const bool ends = entry.find("status") != nullptr;
  const YamlNode item =
      reader.known_keys(entry, "expect",
                        ends ? std::vector<std::string>{"arm", "status", "signal", "when"}
                             : std::vector<std::string>{"metric", "arm", "equals", "at_least", "at_most", "within",
                                                        "abs", "rel", "when", "otherwise", "status", "signal"},
                        mistakes);
  Expectation out;
  out.line = item.place.line;
  const bool has_side = read([&] { out.side = read_side(reader, item, "expect", context); });
  if (ends) {
    read([&] { read_ending(reader, item, out); });
  } else {
    if (const YamlEntry* signal = item.find("signal"))
      read([&] { reader.refuse(signal->place, "`expect.signal` goes with `status: crashed` only"); });
    read([&] { out.metric = read_metric(reader, item, "expect", context); });
    read([&] { read_comparison(reader, item, context, has_side ? std::optional(out.side) : std::nullopt, out); });
  }
  read([&] { out.when = optional_condition(reader, item, "expect", context); });
  mistakes.throw_all();
  return out;
}

}  // namespace

const std::vector<std::string>& arm_statuses() {
  static const std::vector<std::string> statuses{"ok", "crashed", "timeout", "out_of_memory", "error"};
  return statuses;
}

const std::vector<std::string>& expected_signals() {
  static const std::vector<std::string> signals{"SIGABRT", "SIGBUS",  "SIGFPE",  "SIGILL",
                                                "SIGKILL", "SIGSEGV", "SIGTERM", "SIGTRAP"};
  return signals;
}

std::string_view name(Side side) {
  switch (side) {
    case Side::kBefore: return "before";
    case Side::kAfter: return "after";
    case Side::kBf16: return "bf16";
    case Side::kDifference: return "difference";
  }
  return "?";
}

std::string_view name(Arm arm) {
  switch (arm) {
    case Arm::kBefore: return "before";
    case Arm::kAfter: return "after";
    case Arm::kBf16: return "bf16";
  }
  return "?";
}

EntryContext::EntryContext(const Matrix* matrix, const std::vector<std::string>* measured, std::optional<bool> before)
    : measure(measured),
      has_before(before),
      knows_axes(matrix != nullptr),
      axis_names(matrix ? matrix->axis_names() : std::vector<std::string>{}),
      points(matrix ? expand(*matrix) : std::vector<Axes>{}) {
  for (const std::string& name : axis_names) {
    std::vector<std::string> values = matrix->values_of(name);
    std::unordered_set<std::string> known(values.begin(), values.end());
    axes.push_back({{name, std::move(values)}, std::move(known)});
  }
}

std::string text_of(const Expectation& expectation) {
  if (expectation.comparison == Comparison::kEnds) {
    const std::string by = expectation.signal.empty() ? "" : " by " + expectation.signal;
    return fmt::format("{} ends {}{}", name(expectation.side), expectation.status, by);
  }
  const auto as_written = [&](double limit) {
    if (expectation.unit.empty()) return shortest(limit);
    const auto factor = in_base_units(expectation.unit, find_metric(expectation.metric)->unit);
    return fmt::format("{} {}", shortest(limit / factor.value_or(1)), expectation.unit);
  };
  std::string text = fmt::format("{} {} ", name(expectation.side), expectation.metric);
  if (expectation.comparison == Comparison::kWithin)
    return text + fmt::format("is within [{}, {}]", as_written(expectation.low), as_written(expectation.high));
  const std::string_view verb = expectation.comparison == Comparison::kEquals    ? "equals"
                                : expectation.comparison == Comparison::kAtLeast ? "is at least"
                                                                                 : "is at most";
  text += fmt::format("{} {}", verb,
                      expectation.predicted                       ? "predicted"
                      : expectation.of && expectation.factor == 1 ? fmt::format("{}'s", name(*expectation.of))
                      : expectation.of ? fmt::format("{} of {}'s", shortest(expectation.factor), name(*expectation.of))
                                       : as_written(expectation.low));
  if (expectation.abs > 0) text += fmt::format(" (abs {})", shortest(expectation.abs));
  if (expectation.rel > 0) text += fmt::format(" (rel {})", shortest(expectation.rel));
  return text;
}

void read_expectation(const NodeReader& reader, const YamlNode& entry, const EntryContext& context, Scenario& out) {
  reader.item_as_map(entry, "expect");
  const YamlEntry* arms = entry.find("arm");
  const YamlEntry* otherwise = entry.find("otherwise");
  const auto add = [&](Expectation read) {
    if (otherwise) out.otherwise.push_back(read_otherwise(reader, *otherwise, read, out.otherwise));
    out.expect.push_back(std::move(read));
  };
  if (!arms || !arms->value.is_list()) return add(read_for_one_arm(reader, entry, context));
  std::set<Side> listed;
  for (const YamlNode& arm : reader.as_list(*arms, "expect.arm")) {
    YamlNode one = entry;
    one.find("arm")->value = arm;
    Expectation read = read_for_one_arm(reader, one, context);
    if (!listed.insert(read.side).second)
      reader.refuse(arm.place, fmt::format("`expect.arm` lists {} twice", name(read.side)));
    add(std::move(read));
  }
}

Claim read_claim(const NodeReader& reader, const YamlNode& entry, const EntryContext& context) {
  reader.item_as_map(entry, "claims");
  Mistakes mistakes;
  const auto read = [&](const auto& piece) { return mistakes.collect(piece); };
  const YamlNode item = reader.known_keys(
      entry, "claims", {"source", "words", "metric", "arm", "value", "unit", "note", "when"}, mistakes);
  const auto value_of = [&](const std::string& key) -> const YamlNode& {
    return reader.required(item, key, "claims").value;
  };
  Claim out;
  read([&] { out.source = reader.text(value_of("source"), "claims.source"); });
  read([&] { out.words = reader.text(value_of("words"), "claims.words"); });
  read([&] { out.side = read_side(reader, item, "claims", context); });
  read([&] { out.value = reader.number(value_of("value"), "claims.value"); });
  read([&] {
    out.metric = read_metric(reader, item, "claims", context);
    out.unit = reader.one_of(value_of("unit"), "claims.unit", units_of(find_metric(out.metric)->unit));
  });
  read([&] {
    if (const YamlEntry* note = item.find("note")) out.note = reader.text(note->value, "claims.note");
  });
  read([&] { out.when = optional_condition(reader, item, "claims", context); });
  mistakes.throw_all();
  return out;
}

SkipRule read_skip_rule(const NodeReader& reader, const YamlNode& entry, const EntryContext& context) {
  reader.item_as_map(entry, "skip_if");
  Mistakes mistakes;
  const YamlNode item = reader.known_keys(entry, "skip_if", {"when", "reason"}, mistakes);
  SkipRule out;
  mistakes.collect([&] {
    if (!item.find("reason")) reader.refuse(item.place, "`skip_if.reason` is missing; a skipped cell must say why");
    out.reason = reader.text(item.find("reason")->value, "skip_if.reason");
  });
  mistakes.collect(
      [&] { out.when = read_condition(reader, reader.required(item, "when", "skip_if"), "skip_if.when", context); });
  mistakes.throw_all();
  return out;
}

}  // namespace fp8lab

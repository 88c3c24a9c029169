#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cell/metrics.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/cli/program.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

std::string allowed(const Key& key, const Vocabulary& vocabulary) {
  switch (key.type) {
    case KeyType::kSwitch: return "true, false";
    case KeyType::kInteger: return fmt::format("an integer from {} to {}", shortest(key.low), shortest(key.high));
    case KeyType::kNumber: return fmt::format("a number from {} to {}", shortest(key.low), shortest(key.high));
    case KeyType::kMesh: return "4 (shards) or 2x4 (replicas x shards)";
    case KeyType::kWord: break;
  }
  return key.last() == "fix" ? "a row of `fp8lab fixes`" : fmt::format("{}", fmt::join(key.words(vocabulary), ", "));
}

std::string default_of(const Key& key) {
  const std::string text = to_text(key.get(CellConfig{}));
  return text.empty() ? "left out" : text;
}

/// A value other than the default, where there is one.
std::string example_value(const Key& key, const Vocabulary& vocabulary) {
  const std::string usual = to_text(key.get(CellConfig{}));
  switch (key.type) {
    case KeyType::kSwitch: return usual == "true" ? "false" : "true";
    case KeyType::kInteger:
      return std::to_string(static_cast<std::int64_t>(std::max(key.low, std::min(key.high, 2.0))));
    case KeyType::kNumber: return shortest(std::max(key.low, std::min(key.high, 0.1)));
    case KeyType::kMesh: return "2x4";
    case KeyType::kWord: break;
  }
  for (const std::string& word : key.words(vocabulary))
    if (word != usual) return word;
  return usual;
}

/// "training: {recipe: delayed}"
std::string example(const Key& key, const Vocabulary& vocabulary) {
  std::string out = fmt::format("{}: {}", key.last(), example_value(key, vocabulary));
  std::string_view section = key.section();
  while (!section.empty()) {
    const std::size_t dot = section.rfind('.');
    out = fmt::format("{}: {{{}}}", dot == std::string_view::npos ? section : section.substr(dot + 1), out);
    section = dot == std::string_view::npos ? std::string_view() : section.substr(0, dot);
  }
  return out;
}

std::string direction(const Metric& metric) {
  return metric.better == Better::kLess ? "less" : metric.better == Better::kMore ? "more" : "neither";
}

std::string gate_example(const Metric& metric) {
  std::string name(metric.name);
  if (metric.is_family()) name.back() = '.', name += "NAME";
  if (!metric.exact) return fmt::format("{{metric: {}, arm: after, at_most: 1.05 of before}}", name);
  if (metric.better == Better::kMore) return fmt::format("{{metric: {}, at_least: 1}}", name);
  return fmt::format("{{metric: {}, at_most: 1000}}", name);
}

/// The rows whose name is `name` or begins with it; all for an empty one. Throws Error if there are none.
template <class Row, class Name>
std::vector<const Row*> rows_of(std::span<const Row> rows, const std::string& name, std::string_view what, Name of) {
  std::vector<const Row*> out;
  std::vector<std::string> known;
  for (const Row& row : rows) {
    known.emplace_back(of(row));
    if (of(row) == name) return {&row};
    if (of(row).starts_with(name)) out.push_back(&row);
  }
  if (out.empty()) fail(fmt::format("no {} is called `{}`.{}", what, quotable(name), suggestion(name, known)));
  return out;
}

void print(const Json& json) { std::fputs((json.dump(2) + "\n").c_str(), stdout); }

}  // namespace

int keys_command(const std::string& name, bool json, const Program& program) {
  const Vocabulary& vocabulary = program.vocabulary();
  std::vector<const Key*> rows;
  // As on an axis of a matrix, the last part alone names a key too.
  if (const Key* one = name.empty() ? nullptr : find_key(name))
    rows = {one};
  else
    rows = rows_of(keys(), name, "key", [](const Key& key) { return key.path; });
  Json out = Json::array();
  for (const Key* key : rows) {
    if (json)
      out.push_back({{"key", key->path},
                     {"meaning", key->meaning},
                     {"allowed", allowed(*key, vocabulary)},
                     {"default", to_text(key->get(CellConfig{}))},
                     {"example", example(*key, vocabulary)}});
    else if (rows.size() == 1)
      fmt::print("{}\n  {}\n  allowed: {}\n  default: {}\n  example: {}\n", key->path, key->meaning,
                 allowed(*key, vocabulary), default_of(*key), example(*key, vocabulary));
    else
      fmt::print("{:<44} {}\n", key->path, key->meaning);
  }
  if (json)
    print(out);
  else if (rows.size() > 1)
    fmt::print("\n`fp8lab keys NAME` tells what a key may be, its default, and an example.\n");
  return 0;
}

int metrics_command(const std::string& name, bool json, const Program&) {
  const Metric* const one = name.empty() ? nullptr : find_metric(name);
  const std::vector<const Metric*> rows =
      one != nullptr ? std::vector<const Metric*>{one}
                     : rows_of(metrics(), name, "metric", [](const Metric& metric) { return metric.name; });
  Json out = Json::array();
  for (const Metric* metric : rows) {
    if (json)
      out.push_back({{"metric", metric->name},
                     {"meaning", metric->meaning},
                     {"unit", metric->unit},
                     {"better", direction(*metric)},
                     {"exact", metric->exact},
                     {"group", metric->group()},
                     {"example", gate_example(*metric)}});
    else if (rows.size() == 1)
      fmt::print(
          "{}\n  {}\n  unit:     {}\n  better:   {}\n  {}\n  measured: measure: [{}]\n  example:  expect: [{}]\n",
          metric->name, metric->meaning, metric->unit == "1" ? "a count, fraction or flag" : metric->unit,
          direction(*metric),
          metric->exact ? "repeats:  every run gives the same figure" : "repeats:  no; gated against another arm",
          metric->group(), gate_example(*metric));
    else
      fmt::print("{:<42} {:<3} {}\n", metric->name, metric->unit, metric->meaning);
  }
  if (json)
    print(out);
  else if (rows.size() > 1)
    fmt::print("\n`fp8lab metrics NAME` tells its direction, the group that measures it, and an example of a gate.\n");
  return 0;
}

}  // namespace fp8lab

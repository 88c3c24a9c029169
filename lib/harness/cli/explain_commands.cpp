#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/cell/file_keys.h"
#include "harness/cell/keys.h"
#include "harness/cell/metrics.h"
#include "harness/cell/read_keys.h"
#include "harness/cell/spelling.h"
#include "harness/cell/units.h"
#include "harness/cli/program.h"

namespace fp8lab {
namespace {

using Json = nlohmann::ordered_json;

const char* type_of(const Key& key) {
  switch (key.type) {
    case KeyType::kSwitch: return "switch";
    case KeyType::kInteger: return key.is_size ? "size" : "integer";
    case KeyType::kNumber: return "number";
    case KeyType::kWord: return "word";
    case KeyType::kMesh: return "mesh";
    case KeyType::kText: return "text";
    case KeyType::kFile: return "file";
  }
  return "";
}

/// "" if the value of a key that is left out follows from other keys.
std::string default_of(const Key& key, const Vocabulary& vocabulary) {
  const std::string usual = to_text(key.get(CellConfig{}));
  return value_of(key, usual, vocabulary) ? usual : "";
}

/// A value that the key accepts. It is not the default if the key accepts several.
std::string example_value(const Key& key, const Vocabulary& vocabulary) {
  const std::string usual = default_of(key, vocabulary);
  switch (key.type) {
    case KeyType::kSwitch: return usual == "true" ? "false" : "true";
    case KeyType::kInteger:
      if (key.is_size) return "80GiB";
      [[fallthrough]];
    case KeyType::kNumber: {
      const std::string low = to_text(*value_of(key, fmt::format("{:.0f}", std::ceil(key.low)), vocabulary));
      return usual.empty() ? low : usual;
    }
    case KeyType::kMesh: return "2x4";
    case KeyType::kText: return key.section() == "versions" ? "2.14.1" : "eager";
    case KeyType::kFile: return key.path == "script" ? "train.py" : "corpora/prose.txt";
    case KeyType::kWord: break;
  }
  for (const std::string& word : key.words(vocabulary))
    if (word != usual) return word;
  return usual;
}

/// The key as a scenario writes it: "training: {recipe_options: {margin: 0}}".
std::string example_of(const Key& key, const Vocabulary& vocabulary) {
  std::string out = fmt::format("{}: {}", key.last(), example_value(key, vocabulary));
  for (std::string_view section = key.section(); !section.empty();) {
    const auto dot = section.rfind('.');
    const std::string_view inner = dot == std::string_view::npos ? section : section.substr(dot + 1);
    out = fmt::format("{}: {{{}}}", inner, out);
    section = dot == std::string_view::npos ? std::string_view{} : section.substr(0, dot);
  }
  return out;
}

/// What a scenario without the key means: "required", "absent unless given: as many as heads", or the value.
std::string default_in_words(std::string_view usual, std::string_view absent) {
  if (absent.empty()) return std::string(usual);
  if (absent.starts_with(kRequired)) return std::string(absent);
  return fmt::format("absent unless given: {}", absent);
}

Json json_of(const Key& key, const Vocabulary& vocabulary) {
  const std::string_view absent = absent_meaning(key.path);
  const std::string usual = absent.empty() ? default_of(key, vocabulary) : "";
  Json out{{"name", key.path}, {"type", type_of(key)}, {"meaning", key.meaning}};
  out["allowed"] = expected_of(key, vocabulary);
  out["default"] = default_in_words(usual, absent);
  const std::string readers = read_by(key, vocabulary);
  out["read_by"] = readers.empty() ? "every cell" : readers;
  out["example"] = example_of(key, vocabulary);
  out["axis"] = fmt::format("matrix: {{{}: [{}]}}", key.last(), example_value(key, vocabulary));
  return out;
}

Json json_of(const FileKey& key) {
  return {{"name", key.name},
          {"type", "part of the file"},
          {"meaning", key.meaning},
          {"allowed", key.allowed},
          {"default", default_in_words("", key.absent)},
          {"example", key.example},
          {"axis", nullptr}};
}

const char* better_of(const Metric& metric) {
  switch (metric.better) {
    case Better::kLess: return "less";
    case Better::kMore: return "more";
    case Better::kNeither: return "neither";
  }
  return "";
}

/// An expectation of the metric. A family has one for a member; a prediction has none, because a gate on it would
/// not test the run.
std::string example_of(const Metric& metric) {
  if (metric.is_family()) return fmt::format("measure: [{}]", metric.group());
  const bool more = metric.better == Better::kMore;
  const char* const limit = metric.exact ? "1" : more ? "0.95 of before" : "1.05 of before";
  return fmt::format("expect: [{{metric: {}, arm: after, {}: {}}}]", metric.name, more ? "at_least" : "at_most", limit);
}

/// What `compare` makes of a difference.
std::string slack_in_words(const Metric& metric) {
  if (!metric.exact) return "not judged: it differs from run to run";
  if (metric.better == Better::kNeither || metric.is_family()) return "not judged: it describes";
  if (!metric.has_slack()) return "none: every run of a cell has the same figure";
  const std::string absolute = figure(metric.slack_abs, metric.unit);
  return fmt::format("a difference of up to {} is neither better nor worse",
                     metric.slack_rel > 0 ? fmt::format("{} % of the smaller figure, and of up to {},",
                                                        shortest(100 * metric.slack_rel), absolute)
                                          : absolute);
}

Json json_of(const Metric& metric) {
  return {{"name", metric.name},
          {"unit", metric.unit},
          {"better", better_of(metric)},
          {"exact", metric.exact},
          {"slack_abs", metric.slack_abs},
          {"slack_rel", metric.slack_rel},
          {"slack", slack_in_words(metric)},
          {"measure", metric.group()},
          {"meaning", metric.meaning},
          {"predicted", metric.is_predicted()},
          {"example", example_of(metric)}};
}

/// Prints every field of a row on a line of its own.
std::string in_full(const Json& row) {
  std::string out = row["name"].get<std::string>() + "\n";
  for (const auto& [field, value] : row.items())
    // For programs; "slack" has it in words.
    if (field != "name" && field != "exact" && !field.starts_with("slack_"))
      out += fmt::format("  {:<10} {}\n", field + ":",
                         value.is_string() ? value.get<std::string>()
                         : value.is_null() ? "no; it belongs to the entire file"
                                           : value.dump());
  return out;
}

/// Prints all rows, a line each, or the row of one name in full.
int print_rows(const Json& rows, bool one, bool json) {
  std::string out;
  if (json) out = (one ? rows.front() : rows).dump(2) + "\n";
  for (const Json& row : json ? Json::array() : rows)
    out += one ? in_full(row)
               : fmt::format("{:<44} {}\n", row["name"].get<std::string>(), row["meaning"].get<std::string>());
  std::fputs(out.c_str(), stdout);
  return 0;
}

std::vector<std::string> key_names() {
  std::vector<std::string> names = axis_names();
  for (const FileKey& key : file_keys()) names.emplace_back(key.name);
  for (const Key& key : keys()) names.emplace_back(key.path);
  return names;
}

/// The names of another table, and the command that explains them.
struct OtherTable {
  std::string_view kind, command;
  std::vector<std::string> names;
};

/// The message for a name that is in neither table, or only in `other`. Without a guess it lists no names: the command
/// does that.
std::string unknown(std::string_view command, std::string_view kind, const std::string& name,
                    const std::vector<std::string>& known, const OtherTable& other) {
  const std::string word = quotable(name);
  const auto last_part = [](std::string_view full) { return full.substr(full.rfind('.') + 1); };
  for (const std::string& candidate : other.names)
    if (candidate == name || last_part(candidate) == name)
      return fmt::format("{}: `{}` is a {}, not a {}; `fp8lab {} {}` explains it", command, word, other.kind, kind,
                         other.command, candidate);
  for (const std::string& candidate : known)
    if (last_part(candidate) == last_part(name))
      return fmt::format("{}: unknown {} `{}`; it is `{}`", command, kind, word, candidate);
  if (const std::string guess = nearest(name, known); !guess.empty())
    return fmt::format("{}: unknown {} `{}`. Did you mean `{}`?", command, kind, word, guess);
  if (const std::string guess = nearest(name, other.names); !guess.empty())
    return fmt::format("{}: unknown {} `{}`. Did you mean the {} `{}`? `fp8lab {} {}` explains it.", command, kind,
                       word, other.kind, guess, other.command, guess);
  return fmt::format("{}: unknown {} `{}`; `fp8lab {}` lists all", command, kind, word, command);
}

constexpr std::string_view kOfExpectations[] = {"when", "arm", "metric"};

}  // namespace

int keys_command(const std::string& name, bool json, const Program& program) {
  const Key* wanted = name.empty() ? nullptr : find_key(name);
  // What belongs to an expectation is explained with it.
  const bool of_expectation = std::ranges::find(kOfExpectations, name) != std::end(kOfExpectations);
  const FileKey* of_file = name.empty() ? nullptr : find_file_key(of_expectation ? "expect" : name);
  const auto is_meant = [&](const Key& key) {
    return wanted ? &key == wanted : name.empty() || key.path.starts_with(name + ".");
  };
  Json rows = Json::array();
  for (const FileKey& key : file_keys())
    if (name.empty() || &key == of_file) rows.push_back(json_of(key));
  for (const Key& key : keys())
    if (is_meant(key)) rows.push_back(json_of(key, program.vocabulary()));
  if (rows.empty()) {
    const std::vector<std::string> known = key_names();
    std::vector<std::string> metric_names;
    for (const Metric& metric : metrics()) metric_names.emplace_back(metric.name);
    fail(unknown("keys", "key", name, known, {"metric", "metrics", metric_names}));
  }
  return print_rows(rows, wanted || of_file, json);
}

int metrics_command(const std::string& name, bool json) {
  const Metric* wanted = name.empty() ? nullptr : find_metric(name);
  Json rows = Json::array();
  for (const Metric& metric : metrics())
    if (wanted ? &metric == wanted : name.empty() || metric.group() == name) rows.push_back(json_of(metric));
  if (rows.empty()) {
    std::vector<std::string> known;
    for (const Metric& metric : metrics()) known.emplace_back(metric.name);
    for (const MetricGroup& group : metric_groups()) known.emplace_back(group.name);
    fail(unknown("metrics", "metric or group", name, known, {"key", "keys", key_names()}));
  }
  return print_rows(rows, wanted != nullptr, json);
}

}  // namespace fp8lab

#include "harness/subjects/abilities.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cell/sharding_keys.h"
#include "harness/cell/subject_keys.h"
#include "harness/results/json_reader.h"

namespace fp8lab {
namespace {

using Texts = std::vector<std::string>;

Texts texts_of(const JsonReader& list) {
  Texts out;
  list.each_item([&](const JsonReader& item) { out.push_back(item.text()); });
  return out;
}

bool contains(const Texts& texts, const std::string& text) { return std::ranges::find(texts, text) != texts.end(); }

struct KeyValue {
  std::string key, value;
};

/// The cell's values of a rule's key, as ids write them. A key that ends with "*" is every key that begins so.
std::vector<KeyValue> values_of(const CellConfig& cell, Arm arm, const std::string& key) {
  const bool quantizes = arm != Arm::kBf16 && cell.training.recipe != "bf16";
  const auto one = [&](const std::string& value) { return std::vector<KeyValue>{{key, value}}; };
  const auto flag = [&](bool value) { return one(value ? "true" : "false"); };
  std::vector<KeyValue> out;
  if (key == "measure") {
    for (const std::string& group : cell.measure) out.push_back({key, group});
    return out;
  }
  if (key == "sharded") return flag(is_sharded(cell));
  if (key == "version") return one(version_of(cell, arm));
  if (key == "training.recipe") return one(arm == Arm::kBf16 ? "bf16" : cell.training.recipe);
  if (key == "training.quantized_weights") return flag(quantizes && cell.training.quantized_weights);
  for (const Key& row : keys())
    if (key.ends_with('*') ? row.path.starts_with(key.substr(0, key.size() - 1)) : row.path == key)
      out.push_back({std::string(row.path), to_text(row.get(cell))});
  check(!out.empty(), fmt::format("abilities.json: `{}` is no key of scenarios", key));
  return out;
}

std::string replaced(std::string text, const std::string& word, const std::string& by) {
  if (const auto at = text.find(word); at != std::string::npos) text.replace(at, word.size(), by);
  return text;
}

}  // namespace

Abilities::Abilities(const std::string& file) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return;
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  try {
    const JsonDocument document(text);
    document.root().at("rules").each_item([&](const JsonReader& row) {
      Rule rule{.subjects = texts_of(row.at("subjects")),
                .only = {row.at("key").text(), texts_of(row.at("only"))},
                .when = {},
                .why = row.at("why").text()};
      if (const auto when = row.find("when"))
        when->each_member(
            [&](const std::string& key, const JsonReader& list) { rule.when.push_back({key, texts_of(list)}); });
      rules_.push_back(std::move(rule));
    });
  } catch (const Error& error) {
    fail(fmt::format("{}: {}", file, error.what()));
  }
}

std::string Abilities::why_unable(const CellConfig& cell, Arm arm) const {
  for (const Rule& rule : rules_) {
    if (!contains(rule.subjects, cell.subject)) continue;
    if (!std::ranges::all_of(rule.when, [&](const Condition& condition) {
          return std::ranges::any_of(values_of(cell, arm, condition.key),
                                     [&](const auto& one) { return contains(condition.values, one.value); });
        }))
      continue;
    for (const auto& [key, value] : values_of(cell, arm, rule.only.key)) {
      if (contains(rule.only.values, value)) continue;
      Texts named = rule.only.values;
      std::erase(named, "");
      return fmt::format(
          "{}: {}", key,
          replaced(replaced(rule.why, "{value}", value), "{only}", fmt::format("{}", fmt::join(named, ", "))));
    }
  }
  return "";
}

}  // namespace fp8lab

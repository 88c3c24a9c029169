#include "harness/scenario/scenario_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "harness/cell/spelling.h"

namespace fp8lab {

void Mistakes::add(const ScenarioError& error) {
  all_.push_back(error.with({}));
  all_.insert(all_.end(), error.others().begin(), error.others().end());
}

void Mistakes::throw_all() const {
  if (all_.empty()) return;
  std::vector<ScenarioError> in_order = all_;
  std::stable_sort(in_order.begin(), in_order.end(), [](const ScenarioError& a, const ScenarioError& b) {
    return std::pair(a.place().line, a.place().column) < std::pair(b.place().line, b.place().column);
  });
  if (is_cut_)
    in_order.emplace_back(in_order.back().file(), in_order.back().place(),
                          fmt::format("there may be more mistakes: {} are reported at most", kMost));
  // Several pieces may report the same mistake; keep it once.
  const auto same = [](const ScenarioError& a, const ScenarioError& b) {
    return std::string_view(a.what()) == b.what();
  };
  in_order.erase(std::unique(in_order.begin(), in_order.end(), same), in_order.end());
  const ScenarioError first = in_order.front();
  in_order.erase(in_order.begin());
  throw first.with(std::move(in_order));
}

void NodeReader::refuse(Place place, const std::string& problem) const { throw ScenarioError(file_, place, problem); }

const YamlNode& NodeReader::as_map(const YamlEntry& entry, const std::string& where) const {
  if (!entry.value.is_map())
    refuse(entry.place, fmt::format("`{}` must be a mapping of keys, but is {}", where, described(entry.value)));
  return entry.value;
}

const std::vector<YamlNode>& NodeReader::as_list(const YamlEntry& entry, const std::string& where) const {
  if (!entry.value.is_list())
    refuse(entry.place, fmt::format("`{}` must be a list (`[a, b]`), but is {}", where, described(entry.value)));
  if (entry.value.items.empty()) refuse(entry.place, fmt::format("`{}` is an empty list; remove it or fill it", where));
  return entry.value.items;
}

const YamlNode& NodeReader::item_as_map(const YamlNode& item, const std::string& where) const {
  if (!item.is_map() || item.entries.empty())
    refuse(item.place, fmt::format("each entry of `{}` must be a mapping (`{{key: value}}`), but this is {}", where,
                                   item.is_map() ? "empty" : described(item)));
  return item;
}

YamlNode NodeReader::known_keys(const YamlNode& map, const std::string& where, const std::vector<std::string>& known,
                                Mistakes& mistakes) const {
  const auto belongs_elsewhere = [&](const YamlEntry& entry) {
    const Key* key = find_key(entry.key);
    return key && key->section() != where ? key : nullptr;
  };
  const auto report = [&](const YamlEntry& entry) {
    const std::string full = (where.empty() ? "" : where + ".") + quotable(entry.key);
    if (const Key* elsewhere = belongs_elsewhere(entry)) {
      const std::string home =
          elsewhere->section().empty() ? "at the top level" : fmt::format("under `{}`", elsewhere->section());
      refuse(entry.place, fmt::format("`{}`: no such key here; `{}` belongs {}", full, elsewhere->last(), home));
    }
    refuse(entry.place, fmt::format("`{}`: no such key.{}", full, suggestion(entry.key, known)));
  };
  YamlNode out = map;
  out.entries.clear();
  std::vector<const YamlEntry*> unknown;
  for (const YamlEntry& entry : map.entries) {
    if (std::find(known.begin(), known.end(), entry.key) != known.end())
      out.entries.push_back(entry);
    else
      unknown.push_back(&entry);
  }
  for (const YamlEntry* entry : unknown) {
    const bool was_full = mistakes.is_full();
    mistakes.collect([&] { report(*entry); });
    if (was_full) break;
    const std::string meant = belongs_elsewhere(*entry) ? "" : nearest(entry->key, known);
    if (!meant.empty() && !out.find(meant)) out.entries.push_back({meant, entry->place, entry->value});
  }
  return out;
}

const YamlEntry& NodeReader::required(const YamlNode& map, const std::string& key, const std::string& where) const {
  if (const YamlEntry* entry = map.find(key)) return *entry;
  refuse(map.place, fmt::format("`{}` is missing{}", key,
                                where.empty() ? "; every scenario needs it" : fmt::format(" in `{}`", where)));
}

std::string NodeReader::text(const YamlNode& node, const std::string& where) const {
  if (!node.is_scalar() || node.text.empty())
    refuse(node.place, fmt::format("`{}` must be text, but is {}", where, described(node)));
  return node.text;
}

double NodeReader::number(const YamlNode& node, const std::string& where) const {
  const auto value = node.is_scalar() && !node.quoted ? decimal_number(node.text) : std::nullopt;
  if (!value) refuse(node.place, fmt::format("`{}` must be a number, but is {}", where, described(node)));
  return *value;
}

std::string NodeReader::one_of(const YamlNode& node, const std::string& where,
                               const std::vector<std::string>& allowed) const {
  if (!node.is_scalar())
    refuse(node.place, fmt::format("`{}` must be one of {}, but is {}", where, listed(allowed), described(node)));
  if (std::find(allowed.begin(), allowed.end(), node.text) == allowed.end())
    refuse(node.place,
           fmt::format("`{}`: `{}` is not known.{}", where, quotable(node.text), suggestion(node.text, allowed)));
  return node.text;
}

Value NodeReader::value(const Key& key, const YamlNode& node, const std::string& where) const {
  if (key.type == KeyType::kWord) return word_value(one_of(node, where, key.words(vocabulary_)));
  // "3" in quotes is text: reading it as a number would hide a mistake of the program that wrote the file.
  const bool may_be_quoted = key.type == KeyType::kText || key.type == KeyType::kFile;
  const auto value =
      node.is_scalar() && (may_be_quoted || !node.quoted) ? value_of(key, node.text, vocabulary_) : std::nullopt;
  if (!value)
    refuse(node.place,
           fmt::format("`{}` must be {}, but is {}", where, expected_of(key, vocabulary_), described(node)));
  return *value;
}

}  // namespace fp8lab

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/scenario/scenario_error.h"

// A YAML document as plain data: anchors followed, merge keys (<<) merged, duplicate keys refused. The YAML library
// stays behind yaml_tree.cpp.
namespace fp8lab {

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  Place place;
  std::string text;     ///< of a scalar
  bool quoted = false;  ///< the scalar was written as a string, so "3" is not a number
  std::vector<YamlNode> items;
  std::vector<YamlEntry> entries;  ///< in file order; merged entries follow the mapping's own

  bool is_map() const { return kind == Kind::kMap; }
  bool is_list() const { return kind == Kind::kList; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  const YamlEntry* find(std::string_view key) const;
};

struct YamlEntry {
  std::string key;
  Place place;  ///< of the key
  YamlNode value;
};

/// The one document in `text`. Throws ScenarioError, naming `file`, for anything that is not one document of plain
/// YAML.
YamlNode parse_yaml(const std::string& text, const std::string& file);

/// For messages: "a list of 2", "a mapping", "the text \"2k\"", "the number 3", "nothing".
std::string described(const YamlNode& node);

}  // namespace fp8lab

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/scenario/scenario_error.h"

// A YAML document as plain data: aliases are replaced by what they name, merge keys (<<) are merged, duplicate keys are
// errors. Only yaml_tree.cpp includes the YAML library.
namespace fp8lab {

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kNull;
  Place place;
  std::string text;     ///< the text of a scalar
  bool quoted = false;  ///< the scalar is in quotes, so that "3" is not a number
  std::vector<YamlNode> items;
  std::vector<YamlEntry> entries;  ///< in file order; merged entries follow the mapping's own

  bool is_map() const { return kind == Kind::kMap; }
  bool is_list() const { return kind == Kind::kList; }
  bool is_scalar() const { return kind == Kind::kScalar; }
  const YamlEntry* find(std::string_view key) const;
  YamlEntry* find(std::string_view key);
};

struct YamlEntry {
  std::string key;
  Place place;  ///< place of the key
  YamlNode value;
};

/// Parses `text`, which must be one document of plain YAML. Throws ScenarioError, which names `file`, for anything
/// else.
YamlNode parse_yaml(const std::string& text, const std::string& file);

/// Describes a node for messages: "a list of 2", "a mapping", "the text \"2k\"", "the number 3", "nothing".
std::string described(const YamlNode& node);

}  // namespace fp8lab

#include "harness/results/json_schema.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>

#include "harness/cell/keys.h"
#include "harness/scenario/yaml_tree.h"

namespace fp8lab::sample {
namespace {

using Json = nlohmann::json;

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  if (type == "integer") return value.is_number_integer();
  throw std::runtime_error("schema: unknown type " + type);
}

class Checker {
 public:
  explicit Checker(const Json& root) : root_(root) {}

  void check(const Json& schema, const Json& value, const std::string& path) {
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) found.push_back(path + ": not allowed");
      return;
    }
    for (const auto& [keyword, rule] : schema.items()) check_keyword(keyword, rule, schema, value, path);
  }

  std::vector<std::string> found;

 private:
  void require(bool ok, const std::string& path, const std::string& what) {
    if (!ok) found.push_back(path + ": " + what);
  }

  const Json& resolve(const std::string& reference) const {
    const std::string prefix = "#/$defs/";
    if (!reference.starts_with(prefix)) throw std::runtime_error("schema: unknown reference " + reference);
    return root_.at("$defs").at(reference.substr(prefix.size()));
  }

  void check_properties(const Json& schema, const Json& value, const std::string& path) {
    if (!value.is_object()) return;
    const Json none = Json::object();
    const Json& named = schema.contains("properties") ? schema.at("properties") : none;
    const Json& patterns = schema.contains("patternProperties") ? schema.at("patternProperties") : none;
    for (const auto& [key, member] : value.items()) {
      const std::string below = path + "/" + key;
      bool known = named.contains(key);
      if (known) check(named.at(key), member, below);
      for (const auto& [pattern, rule] : patterns.items())
        if (std::regex_search(key, std::regex(pattern))) {
          known = true;
          check(rule, member, below);
        }
      if (!known && schema.contains("additionalProperties")) check(schema.at("additionalProperties"), member, below);
    }
  }

  bool matches_any(const Json& rules, const Json& value, const std::string& path) const {
    for (const Json& rule : rules) {
      Checker inner(root_);
      inner.check(rule, value, path);
      if (inner.found.empty()) return true;
    }
    return false;
  }

  void check_keyword(const std::string& keyword, const Json& rule, const Json& schema, const Json& value,
                     const std::string& path) {
    const auto length = [&] { return value.is_string() ? value.get<std::string>().size() : value.size(); };
    if (keyword == "$schema" || keyword == "$id" || keyword == "$defs" || keyword == "title" ||
        keyword == "description")
      return;
    if (keyword == "$ref") return check(resolve(rule), value, path);
    if (keyword == "properties" || keyword == "patternProperties") {
      // The three keywords are one rule; it is checked at the first of them that the schema has.
      if (keyword == "properties" || !schema.contains("properties")) check_properties(schema, value, path);
      return;
    }
    if (keyword == "additionalProperties") {
      if (!schema.contains("properties") && !schema.contains("patternProperties"))
        check_properties(schema, value, path);
      return;
    }
    if (keyword == "anyOf") return require(matches_any(rule, value, path), path, "matches none of anyOf");
    if (keyword == "const") return require(value == rule, path, "is not " + rule.dump());
    if (keyword == "enum")
      return require(std::find(rule.begin(), rule.end(), value) != rule.end(), path, value.dump() + " is not in enum");
    if (keyword == "type") {
      const Json types = rule.is_array() ? rule : Json::array({rule});
      bool any = false;
      for (const Json& type : types) any = any || is_of_type(value, type);
      return require(any, path, value.dump() + " is not of type " + rule.dump());
    }
    if (keyword == "required") {
      if (value.is_object())
        for (const Json& key : rule) require(value.contains(key.get<std::string>()), path, "lacks " + key.dump());
      return;
    }
    if (keyword == "items") {
      if (value.is_array())
        for (std::size_t i = 0; i < value.size(); ++i) check(rule, value[i], path + "/" + std::to_string(i));
      return;
    }
    if (keyword == "uniqueItems") {
      if (value.is_array())
        for (std::size_t i = 0; i < value.size(); ++i)
          for (std::size_t k = 0; k < i; ++k) require(value[i] != value[k], path, "repeats " + value[i].dump());
      return;
    }
    if (keyword == "pattern")
      return require(
          !value.is_string() || std::regex_search(value.get<std::string>(), std::regex(rule.get<std::string>())), path,
          "does not match the pattern");
    if (keyword == "minimum") return require(!value.is_number() || value >= rule, path, "is below " + rule.dump());
    if (keyword == "maximum") return require(!value.is_number() || value <= rule, path, "is above " + rule.dump());
    if (keyword == "exclusiveMinimum")
      return require(!value.is_number() || value > rule, path, "is not above " + rule.dump());
    if (keyword == "minItems") return require(!value.is_array() || length() >= rule, path, "is too short");
    if (keyword == "maxItems") return require(!value.is_array() || length() <= rule, path, "is too long");
    if (keyword == "minLength") return require(!value.is_string() || length() >= rule, path, "is too short");
    if (keyword == "maxLength") return require(!value.is_string() || length() <= rule, path, "is too long");
    if (keyword == "minProperties") return require(!value.is_object() || length() >= rule, path, "is empty");
    throw std::runtime_error("schema: unknown keyword " + keyword);
  }

  const Json& root_;
};

/// Converts a YAML document, giving scalars the types that JSON would give them.
Json json_of(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return nullptr;
    case YamlNode::Kind::kList: {
      Json out = Json::array();
      for (const YamlNode& item : node.items) out.push_back(json_of(item));
      return out;
    }
    case YamlNode::Kind::kMap: {
      Json out = Json::object();
      for (const YamlEntry& entry : node.entries) out[entry.key] = json_of(entry.value);
      return out;
    }
    case YamlNode::Kind::kScalar: break;
  }
  if (node.quoted) return node.text;
  if (node.text == "true" || node.text == "false") return node.text == "true";
  if (const auto value = integer(node.text)) return *value;
  if (const auto number = decimal_number(node.text)) return *number;
  return node.text;
}

std::vector<std::string> violations(const Json& schema, const Json& document) {
  Checker checker(schema);
  checker.check(schema, document, "");
  return checker.found;
}

}  // namespace

std::vector<std::string> schema_violations(const std::string& schema, const std::string& document) {
  return violations(Json::parse(schema), Json::parse(document));
}

std::vector<std::string> yaml_schema_violations(const std::string& schema, const std::string& yaml) {
  return violations(Json::parse(schema), json_of(parse_yaml(yaml, "document")));
}

}  // namespace fp8lab::sample

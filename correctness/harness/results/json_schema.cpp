#include "harness/results/json_schema.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include "harness/cell/keys.h"
#include "harness/scenario/yaml_tree.h"

namespace fp8lab::sample {
namespace {

using Json = nlohmann::json;

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

std::vector<std::string> violations(const std::string& schema, const Json& document) {
  const Json rules = Json::parse(schema);
  valijson::Schema parsed;
  valijson::SchemaParser().populateSchema(valijson::adapters::NlohmannJsonAdapter(rules), parsed);
  valijson::ValidationResults results;
  std::vector<std::string> found;
  if (valijson::Validator().validate(parsed, valijson::adapters::NlohmannJsonAdapter(document), &results)) return found;
  for (valijson::ValidationResults::Error error; results.popError(error);)
    found.push_back(fmt::format("{}: {}", fmt::join(error.context, ""), error.description));
  return found;
}

}  // namespace

std::vector<std::string> schema_violations(const std::string& schema, const std::string& document) {
  return violations(schema, Json::parse(document));
}

std::vector<std::string> yaml_schema_violations(const std::string& schema, const std::string& yaml) {
  return violations(schema, json_of(parse_yaml(yaml, "document")));
}

}  // namespace fp8lab::sample

#pragma once

#include <fmt/core.h>

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// Parts of JSON Schemas. Whoever edits a file with a schema sees its descriptions, so every member must have one.
namespace fp8lab::json_schema {

using Json = nlohmann::ordered_json;

/// A member of an object. If its name ends in '?' it is optional.
struct Member {
  std::string_view name;
  Json schema;
  std::string_view description;
};

inline Json described(Json schema, std::string_view description) {
  schema["description"] = description;
  return schema;
}

inline Json reference(std::string_view definition) { return {{"$ref", fmt::format("#/$defs/{}", definition)}}; }

/// A schema of an object with exactly these members.
inline Json object(std::initializer_list<Member> members) {
  Json required = Json::array(), properties = Json::object();
  for (const Member& member : members) {
    const bool optional = member.name.ends_with('?');
    const std::string name(member.name.substr(0, member.name.size() - (optional ? 1 : 0)));
    if (!optional) required.push_back(name);
    properties[name] = described(member.schema, member.description);
  }
  Json out{{"type", "object"}, {"additionalProperties", false}};
  if (!required.empty()) out["required"] = std::move(required);
  out["properties"] = std::move(properties);
  return out;
}

inline Json document(std::string_view id, std::string_view title, const Json& root) {
  Json out{{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"$id", id}, {"title", title}};
  out.update(root);
  return out;
}

}  // namespace fp8lab::json_schema

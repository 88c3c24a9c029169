#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/yaml_tree.h"

namespace fp8lab::sample {

/// Where `document` breaks `schema`, one line each: "/cells/0/id: not of type string". Knows the keywords that our schemas use and
/// throws for any other, so that no rule is passed over in silence.
std::vector<std::string> schema_violations(const nlohmann::json& schema, const nlohmann::json& document);

/// A YAML document with the types that JSON gives its scalars.
nlohmann::json json_of(const YamlNode& node);

}  // namespace fp8lab::sample

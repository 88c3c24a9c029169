#pragma once

#include <string>
#include <vector>

namespace fp8lab::sample {

/// What Valijson finds wrong with a JSON document under a JSON Schema, one line each.
std::vector<std::string> schema_violations(const std::string& schema, const std::string& document);

/// The same for a YAML document with the types that JSON gives its scalars.
std::vector<std::string> yaml_schema_violations(const std::string& schema, const std::string& yaml);

}  // namespace fp8lab::sample

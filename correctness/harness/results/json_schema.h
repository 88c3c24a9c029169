#pragma once

#include <string>
#include <vector>

namespace fp8lab::sample {

/// The places at which a JSON document breaks a JSON Schema, one line each: "/cells/0/id: not of type string". Supports
/// the keywords that our schemas use and throws for any other, so that no rule is passed over in silence.
std::vector<std::string> schema_violations(const std::string& schema, const std::string& document);

/// The same for a YAML document with the types that JSON gives its scalars.
std::vector<std::string> yaml_schema_violations(const std::string& schema, const std::string& yaml);

}  // namespace fp8lab::sample

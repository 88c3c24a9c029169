#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fp8lab {

/// A text as a value of JSON; null for "".
nlohmann::ordered_json text_or_null(const std::string& text);

}  // namespace fp8lab

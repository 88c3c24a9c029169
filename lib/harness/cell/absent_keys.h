#pragma once

#include <string_view>

namespace fp8lab {

/// What a scenario means that leaves out the key of this path, for keys whose default is not one of their values.
/// It begins with "required" where no scenario
/// may leave the key out. "" for other keys.
std::string_view absent_meaning(std::string_view path);

inline constexpr std::string_view kRequired = "required";

}  // namespace fp8lab

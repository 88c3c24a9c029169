#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace fp8lab {

/// A function that is true for ids that contain a match of `expression`, in RE2's syntax: time and memory are linear in
/// the id. Throws Error, which names `option`, if `expression` is not a regular expression.
std::function<bool(const std::string&)> id_matcher(std::string_view option, const std::string& expression);

}  // namespace fp8lab

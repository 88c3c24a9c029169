#pragma once

#include <string>

namespace fp8lab {

/// The content of a file that gzip compressed, through the program `gzip`. Throws Error, which names the file, if the
/// program is missing or refuses the file.
std::string gunzipped(const std::string& path);

}  // namespace fp8lab

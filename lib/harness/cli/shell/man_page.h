#pragma once

#include <string>

namespace CLI {
class App;
}

namespace fp8lab {

/// The manual page of the program, for `man`, made from what `--help` of `app` and of its commands prints. A paragraph
/// of the program's own footer that begins with a title and a colon ("Files:") becomes a section.
std::string man_page(const CLI::App& app, const std::string& version);

}  // namespace fp8lab

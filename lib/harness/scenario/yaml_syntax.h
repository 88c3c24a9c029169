#pragma once

#include <optional>
#include <string>

#include "harness/scenario/scenario_error.h"

// Mistakes of YAML's syntax in words of the file: what was opened where, what to quote, which line to indent. The YAML
// library names only the place where it stopped.
namespace fp8lab {

struct SyntaxMistake {
  Place place;
  std::string problem;
};

/// What is wrong with `text`, at which the library stopped at `stopped` with `message`. Reads the text once.
SyntaxMistake explain_syntax(const std::string& text, Place stopped, const std::string& message);

/// True if the quote at `text[offset]` is closed before the text ends. The library takes one that is not for closed.
bool is_quote_closed(const std::string& text, std::size_t offset);

/// "the quote opened at 3:8 is not closed"
std::string unclosed_quote(Place opened);

}  // namespace fp8lab

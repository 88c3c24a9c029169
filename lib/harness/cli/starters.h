#pragma once

#include <span>
#include <string_view>

namespace fp8lab {

/// A commented scenario that runs and passes as it is, to start one's own from.
struct Starter {
  std::string_view kind;  ///< "memory"; also the scenario's name
  std::string_view title;
  std::string_view text;
};

/// A row each; the tests run every one.
std::span<const Starter> starters();

}  // namespace fp8lab

#pragma once

#include <string>

#include "harness/scenario/scenario.h"

namespace fp8lab {

/// The scenario of a file without variants.
inline Scenario parse_scenario(const std::string& text, const std::string& file, const Vocabulary& vocabulary) {
  return parse_scenarios(text, file, vocabulary).at(0);
}

}  // namespace fp8lab

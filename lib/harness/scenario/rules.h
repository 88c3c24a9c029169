#pragma once

#include <optional>

#include "harness/cell/vocabulary.h"

namespace fp8lab {

/// The first rule that `cell` breaks among those that hold for every layer and recipe: lengths that are there and
/// divide, ranks that a device can have and a mesh can place, training keys that mean something together.
std::optional<BrokenRule> broken_general_rule(const CellConfig& cell, const Vocabulary& vocabulary);

}  // namespace fp8lab

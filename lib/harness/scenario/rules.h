#pragma once

#include <optional>

#include "harness/cell/vocabulary.h"

namespace fp8lab {

/// The first rule that `cell` breaks among those that hold for every layer and recipe: required lengths are present and
/// divisible; the device can run so many ranks and the mesh has as many; the training keys are consistent.
std::optional<BrokenRule> broken_general_rule(const CellConfig& cell, const Vocabulary& vocabulary);

}  // namespace fp8lab

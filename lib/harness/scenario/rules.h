#pragma once

#include <vector>

#include "harness/cell/vocabulary.h"

namespace fp8lab {

/// The rules that `cell` breaks, one of each kind: required lengths are present and divisible; the device can run so
/// many ranks and the mesh has the same; the training keys are consistent. If all of these hold, the rule of its layer
/// or recipe that it breaks.
std::vector<BrokenRule> broken_rules(const CellConfig& cell, const Vocabulary& vocabulary);

}  // namespace fp8lab

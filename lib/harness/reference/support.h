#pragma once

#include <string>
#include <string_view>

#include "harness/cell/cell.h"

namespace fp8lab::reference_step {

/// Empty if the reference step covers the cell under `recipe`, otherwise why not, in words.
std::string why_unsupported(const CellConfig& cell, std::string_view recipe);

/// Multiplications of one forward and backward pass.
double multiplications(const ModelConfig& model);

/// The most multiplications over all steps: a few seconds on one core.
inline constexpr double kMostMultiplications = 3e9;

}  // namespace fp8lab::reference_step

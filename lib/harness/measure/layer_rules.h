#pragma once

#include <vector>

#include "harness/cell/vocabulary.h"
#include "recipe/recipe.h"

namespace fp8lab {

/// The keys of the model for which the recipe cannot quantize a matrix of the layer, each with the nearest sizes that
/// it can.
std::vector<BrokenRule> broken_layer_rules(const CellConfig& cell, const Recipe& recipe);

}  // namespace fp8lab

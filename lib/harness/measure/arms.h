#pragma once

#include <map>
#include <optional>
#include <string>

#include "behavior/behaviors.h"
#include "harness/cell/cell.h"
#include "recipe/recipe.h"

// What an arm of a cell stands for, and how its figures are written down.
namespace fp8lab {

/// All fixed, but for `before`, which reverts the cell's fix.
Behaviors behaviors_of(const CellConfig& cell, Arm arm);
/// The cell's, but BF16 for the arm of that name.
Recipe recipe_of(const CellConfig& cell, Arm arm);

/// Writes a figure, or why there is none, in the unit that the table of metrics gives it.
void put(std::map<std::string, MetricValue>& metrics, const std::string& name, std::optional<double> value,
         std::string reason = {});

}  // namespace fp8lab

#pragma once

#include <vector>

#include "recipe/recipe.h"

// Names of the table of recipes as test parameters, so that a new recipe is tested wherever all are.
namespace fp8lab::support {

inline std::vector<const char*> quantized_recipe_names() {
  std::vector<const char*> names;
  for (const RecipeRow& row : recipes())
    if (row.make().quantized) names.push_back(row.name.data());
  return names;
}

inline std::vector<const char*> recipe_names() {
  std::vector<const char*> names;
  for (const RecipeRow& row : recipes()) names.push_back(row.name.data());
  return names;
}

}  // namespace fp8lab::support

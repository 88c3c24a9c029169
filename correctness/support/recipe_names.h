#pragma once

#include <vector>

#include "recipe/recipe.h"

// The recipes of the table as test parameters, so that a new recipe is tested wherever all recipes are.
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

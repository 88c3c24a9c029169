#include "recipe/rows.h"

namespace fp8lab {

Recipe make_bf16() {
  Recipe recipe;
  recipe.quantized = false;
  return recipe;
}

}  // namespace fp8lab

#pragma once

#include "recipe/recipe.h"

// The functions behind the table of recipes.cpp, one file each; per-tensor recipes share a file, and so do blockwise
// ones.
namespace fp8lab {

Recipe make_bf16();
Recipe make_delayed();
Recipe make_current();
Recipe make_block();
Recipe make_mxfp8();

}  // namespace fp8lab

#include "recipe/rows.h"

namespace fp8lab {
namespace {

QuantFormat blocks(std::int64_t rows, std::int64_t cols, ScaleKind scale) {
  QuantFormat format;
  format.block_rows = rows;
  format.block_cols = cols;
  format.amax_source = AmaxSource::kBlock;
  format.scale = scale;
  return format;
}

}  // namespace

// E4M3 for every role. Activations and gradients have 1 x 128 blocks along the reduction axis, weights 128 x 128
// blocks. Scales are powers of two unless power_of_two_scales is false.
Recipe make_block() {
  Recipe recipe;
  recipe.activation = blocks(1, 128, ScaleKind::kF32PowerOfTwo);
  recipe.weight = blocks(128, 128, ScaleKind::kF32PowerOfTwo);
  recipe.gradient = blocks(1, 128, ScaleKind::kF32PowerOfTwo);
  recipe.rows_multiple = 128;
  recipe.cols_multiple = 128;
  recipe.shape_rule =
      "block scaling needs rows and columns divisible by 128, so that both orientations have full blocks";
  return recipe;
}

// OCP MX: E4M3 in blocks of 32 along the reduction axis with one E8M0 byte each. Both orientations are cast from the
// high-precision source, because a block of 32 columns cannot be transposed into a block of 32 rows.
Recipe make_mxfp8() {
  Recipe recipe;
  recipe.activation = blocks(1, 32, ScaleKind::kE8M0Rceil);
  recipe.weight = recipe.activation;
  recipe.gradient = recipe.activation;
  recipe.rows_multiple = 32;
  recipe.cols_multiple = 32;
  recipe.shape_rule = "mxfp8 needs rows and columns divisible by 32, so that both orientations have full blocks";
  return recipe;
}

}  // namespace fp8lab

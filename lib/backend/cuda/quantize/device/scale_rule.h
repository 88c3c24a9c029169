#pragma once

#include "core/float8.h"
#include "recipe/recipe.h"

namespace fp8lab::cuda {

/// How a block's amax becomes its scale, as kernel arguments.
struct ScaleRule {
  ScaleKind kind;
  float fp8_max;
  int emax;
  float epsilon;
  float largest;
};

/// The rule for elements of type `cast`.
inline ScaleRule scale_rule(const QuantFormat& format, DType cast) {
  const bool e4m3 = format.dtype == DType::kE4M3;
  return {.kind = format.scale,
          .fp8_max = e4m3 ? E4M3::kMax : E5M2::kMax,
          .emax = e4m3 ? E4M3::kEmax : E5M2::kEmax,
          .epsilon = format.epsilon,
          .largest = format.per_tensor() ? kFloatMax : largest_block_scale(cast)};
}

}  // namespace fp8lab::cuda

#pragma once

#include <cmath>
#include <cstdint>

namespace fp8lab {

/// How Adam averages a moment: `weight` is what a new gradient weighs, 1 - beta rounded to f32 once. `correction` is the
/// sum of the weights of `step` gradients and divides the moment, which started from zero. Both come from `weight`: were
/// the correction taken from beta instead, the rounding of beta to f32, up to 2^-25, would stay in the quotient as a bias
/// of 2^-25 / (1 - beta), 3 parts in 10^3 at beta = 0.99999.
struct MomentRule {
  float weight;
  double correction;
};

inline MomentRule moment_rule(double beta, std::int64_t step) {
  const auto weight = static_cast<float>(1.0 - beta);
  return {.weight = weight, .correction = 1.0 - std::pow(1.0 - static_cast<double>(weight), static_cast<double>(step))};
}

}  // namespace fp8lab

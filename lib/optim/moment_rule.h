#pragma once

#include <cstdint>

#include "core/portable_math.h"

namespace fp8lab {

/// How Adam averages a moment. `weight` is the weight of a new gradient: 1 - beta, rounded to f32 once. `correction`
/// divides the moment, which starts from zero: it is the sum of the weights of `step` gradients. It is computed from
/// `weight`, because a weight from beta in f32 with a correction from the exact beta would leave a bias of up to 2^-25
/// / (1 - beta) in the quotient, 3 parts in 10^3 at beta = 0.99999.
struct MomentRule {
  float weight;
  double correction;
};

inline MomentRule moment_rule(double beta, std::int64_t step) {
  const auto weight = static_cast<float>(1.0 - beta);
  return {.weight = weight, .correction = 1.0 - portable::power(1.0 - static_cast<double>(weight), step)};
}

}  // namespace fp8lab

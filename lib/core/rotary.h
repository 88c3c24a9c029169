#pragma once

#include <cstdint>

#include "core/portable_math.h"

namespace fp8lab {

/// position * base^(-2 pair / head_dim), the angle by which pair `pair` of a head is rotated. In double, because a
/// float loses the fraction at long sequences. For the host only, as are its sine and cosine.
inline double rotary_angle(std::int64_t position, std::int64_t pair, std::int64_t head_dim, double base) {
  const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim);
  return static_cast<double>(position) * portable::exponential(exponent * portable::logarithm(base));
}

}  // namespace fp8lab

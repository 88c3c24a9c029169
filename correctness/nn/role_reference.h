#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/float8_reference.h"

// Per-tensor casts in double precision, for the references of quantized modules.
namespace fp8lab::nn_test {

using Doubles = std::vector<double>;

inline const reference::SmallFloat kE4M3(reference::kE4M3Layout);
inline const reference::SmallFloat kE5M2(reference::kE5M2Layout);

inline double amax_of(const Doubles& values) {
  double amax = 0;
  for (const double value : values) amax = std::max(amax, std::fabs(value));
  return amax;
}

/// Each value cast under `scale` and dequantized again.
inline Doubles cast(const Doubles& values, const reference::SmallFloat& format, double scale) {
  Doubles result;
  result.reserve(values.size());
  for (const double value : values) result.push_back(format.decode(format.encode(value * scale)) / scale);
  return result;
}

}  // namespace fp8lab::nn_test

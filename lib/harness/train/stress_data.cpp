#include "harness/train/stress_data.h"

#include <cmath>

namespace fp8lab {
namespace {

/// The number nearest to `x` with five significant bits of which the last is 1: E4M3 keeps four.
float tie_near(float x) {
  if (x == 0.0f) return x;
  const float unit = std::ldexp(1.0f, std::ilogb(x) - 3);
  return (std::floor(x / unit) + 0.5f) * unit;
}

}  // namespace

void stress(std::vector<float>& values, std::int64_t cols, const HugeColumn& huge) {
  for (std::size_t at = 0; at < values.size(); ++at) {
    const auto row = static_cast<std::int64_t>(at) / cols, col = static_cast<std::int64_t>(at) % cols;
    float& value = values[at];
    if (col == huge.column)
      value = std::ldexp(value, huge.binades);
    else if (col % 16 == 6)
      value = 0.0f;
    else if (col % 4 == 1)
      value = std::ldexp(value, static_cast<int>(-3 * ((7 * row + 13 * col) % 8)));
    else if (col % 4 == 0)
      value = std::ldexp(value, static_cast<int>(-(col / 4) % 12));
    else if (col % 4 == 2)
      value = tie_near(value);
  }
}

}  // namespace fp8lab

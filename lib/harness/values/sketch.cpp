#include "harness/values/sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/fnv1a.h"

namespace fp8lab {
namespace {

/// Rows of 64 elements that share a sign of their own in addition to the sign of a row. Bounds the table of signs.
constexpr std::size_t kRows = std::size_t{1} << 14;

/// 1 or -1 by a hash of `index` (splitmix64).
double sign_of(std::uint64_t index) {
  std::uint64_t value = index + 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return ((value ^ (value >> 31)) & 1) != 0 ? -1.0 : 1.0;
}

}  // namespace

Sketch sketch_of(std::span<const float> values) {
  Sketch out;
  double squares = 0.0;
  out.bits = kFnv1aBasis;
  for (std::size_t begin = 0, row = 0; begin < values.size(); begin += kSketchSums, ++row) {
    const double sign = sign_of(row % kRows) * sign_of((std::uint64_t{1} << 32) + row / kRows);
    const std::size_t count = std::min(kSketchSums, values.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      const double value = static_cast<double>(values[begin + i]);
      squares += value * value;
      out.sums[i] += sign * value;
      out.bits = fnv1a_word(std::bit_cast<std::uint32_t>(values[begin + i]), out.bits);
    }
  }
  out.norm = std::isfinite(squares) ? std::sqrt(squares) : std::numeric_limits<double>::quiet_NaN();
  return out;
}

double relative_difference(const Sketch& a, const Sketch& b) {
  if (a.bits == b.bits) return 0.0;
  if (!std::isfinite(a.norm) || !std::isfinite(b.norm)) return std::numeric_limits<double>::infinity();
  const double largest = std::max(a.norm, b.norm);
  if (largest == 0.0) return kLeastDifference;  // zeros of another sign, or values that underflow
  double squares = 0.0;
  for (std::size_t i = 0; i < kSketchSums; ++i) squares += (a.sums[i] - b.sums[i]) * (a.sums[i] - b.sums[i]);
  return std::max(std::sqrt(squares) / largest, kLeastDifference);
}

}  // namespace fp8lab

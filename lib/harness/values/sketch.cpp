#include "harness/values/sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/fnv1a.h"

namespace fp8lab {
namespace {

enum Kind : std::uint64_t { kPlusInfinity = 1, kMinusInfinity = 2, kNotANumber = 3 };

/// A hash of `index` (splitmix64).
std::uint64_t hash_of(std::uint64_t index) {
  std::uint64_t value = index + 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

Kind kind_of(float value) {
  if (std::isnan(value)) return kNotANumber;
  return value > 0.0f ? kPlusInfinity : kMinusInfinity;
}

}  // namespace

Sketch sketch_of(std::span<const float> values) {
  Sketch out;
  double squares = 0.0;
  out.bits = kFnv1aBasis;
  for (std::size_t begin = 0, row = 0; begin < values.size(); begin += kSketchSums, ++row) {
    const std::uint64_t signs = hash_of(2 * row), order = hash_of(2 * row + 1) % kSketchSums;
    const std::size_t count = std::min(kSketchSums, values.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      const float element = values[begin + i];
      out.bits = fnv1a_word(std::bit_cast<std::uint32_t>(element), out.bits);
      if (!std::isfinite(element)) {
        out.not_finite += hash_of(4 * (begin + i) + kind_of(element));
        continue;
      }
      const double value = static_cast<double>(element);
      squares += value * value;
      out.sums[i ^ order] += (signs >> i & 1) != 0 ? -value : value;
    }
  }
  out.norm = std::sqrt(squares);
  return out;
}

double relative_difference(const Sketch& a, const Sketch& b) {
  if (a.bits == b.bits) return 0.0;
  if (a.not_finite != b.not_finite) return std::numeric_limits<double>::infinity();
  const double largest = std::max(a.norm, b.norm);
  if (largest == 0.0) return kLeastDifference;  // zeros of another sign, or values that underflow
  double squares = 0.0;
  for (std::size_t i = 0; i < kSketchSums; ++i) squares += (a.sums[i] - b.sums[i]) * (a.sums[i] - b.sums[i]);
  return std::max(std::sqrt(squares) / largest, kLeastDifference);
}

}  // namespace fp8lab

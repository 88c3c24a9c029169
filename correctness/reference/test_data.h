#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/parallel.h"

/// Test data as a pure function of (seed, global index), so that the data of a shard are a slice of the full tensor's.
/// Shares no code with the generator under test.
namespace fp8lab::reference {

/// SplitMix64's output function: every input bit reaches every output bit.
inline std::uint64_t scramble(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// Uniform in the open interval (0, 1).
inline double uniform(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = scramble(scramble(seed) ^ index);
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}

/// Standard normal.
inline double gaussian(std::uint64_t seed, std::uint64_t index) {
  const double radius = std::sqrt(-2.0 * std::log(uniform(seed, 2 * index)));
  return radius * std::cos(6.283185307179586 * uniform(seed, 2 * index + 1));
}

/// `count` values of normal(0, deviation), from global index `first` on.
inline std::vector<float> gaussian_values(std::int64_t count, std::uint64_t seed, double deviation = 1.0,
                                          std::uint64_t first = 0) {
  std::vector<float> values(static_cast<std::size_t>(count));
  parallel_parts(count, [&](std::int64_t i) {
    values[static_cast<std::size_t>(i)] =
        static_cast<float>(deviation * gaussian(seed, first + static_cast<std::uint64_t>(i)));
  });
  return values;
}

}  // namespace fp8lab::reference

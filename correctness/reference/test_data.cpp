#include "reference/test_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reference/parallel.h"

namespace fp8lab::reference {

std::uint64_t scramble(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

double uniform(std::uint64_t seed, std::uint64_t index) {
  const std::uint64_t bits = scramble(scramble(seed) ^ index);
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}

double gaussian(std::uint64_t seed, std::uint64_t index) {
  const double radius = std::sqrt(-2.0 * std::log(uniform(seed, 2 * index)));
  return radius * std::cos(6.283185307179586 * uniform(seed, 2 * index + 1));
}

std::vector<float> gaussian_values(std::int64_t count, std::uint64_t seed, double deviation, std::uint64_t first) {
  std::vector<float> values(static_cast<std::size_t>(count));
  parallel_parts(count, [&](std::int64_t i) {
    values[static_cast<std::size_t>(i)] =
        static_cast<float>(deviation * gaussian(seed, first + static_cast<std::uint64_t>(i)));
  });
  return values;
}

std::vector<float> varied_values(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int exponent = static_cast<int>(scramble(seed ^ (i / 11)) % 17) - 9;
    values[i] = static_cast<float>(std::ldexp(gaussian(seed, i), exponent));
    if (i % 13 == 5) values[i] = 0.0f;
    if (i % 29 == 7) values[i] = -0.0f;
  }
  return values;
}

std::vector<std::byte> any_bytes(std::int64_t count, std::uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  const std::uint64_t start = scramble(seed);
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t word = scramble(start ^ i);
    std::memcpy(&bytes[i], &word, std::min(bytes.size() - i, sizeof word));
  }
  return bytes;
}

}  // namespace fp8lab::reference

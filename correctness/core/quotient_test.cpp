// Division by the reciprocal in double has the bits of the float division, also at quotients next to ties.

#include "core/quotient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "reference/test_data.h"

namespace fp8lab {
namespace {

std::uint32_t random_bits(std::uint64_t seed, std::uint64_t index) {
  return static_cast<std::uint32_t>(reference::scramble(reference::scramble(seed) ^ index) >> 32);
}

/// Bias corrections of Adam, arbitrary fractions, and scales of moments.
std::vector<float> divisors() {
  std::vector<float> divisors = {1.0f, 0.5f, 0x1p-20f, 2.0f, 0x1.fffffep0f, 0x1.000002p0f, 0x1p-126f, 3.0f, 448.0f};
  for (const double beta : {0.9, 0.95, 0.999, 0.9999})
    for (int step = 1; step <= 4096; step *= 2) divisors.push_back(static_cast<float>(1.0 - std::pow(beta, step)));
  for (std::uint64_t i = 0; i < 100; ++i) {
    const std::uint32_t exponent = 1 + random_bits(1, i) % 253;
    divisors.push_back(float_from_bits(exponent << 23 | random_bits(2, i) >> 9));
  }
  return divisors;
}

/// Whether quotient(x, 1 / c) has the bits of x / c. If x / c is subnormal and c is above 2, one unit in the last place
/// is allowed.
testing::AssertionResult is_division(float x, float c) {
  const float expected = x / c, actual = quotient(x, 1.0 / static_cast<double>(c));
  if (float_bits(actual) == float_bits(expected) || (std::isnan(actual) && std::isnan(expected)))
    return testing::AssertionSuccess();
  const bool may_differ = c > 2.0f && std::fabs(expected) < 0x1p-126f;
  if (may_differ && std::fabs(actual - expected) <= 0x1p-149f) return testing::AssertionSuccess();
  return testing::AssertionFailure() << std::hexfloat << x << " / " << c << " is " << expected << ", not " << actual;
}

TEST(Quotient, EqualsTheDivisionForArbitraryFloats) {
  constexpr std::uint64_t kEach = 100'000;
  std::uint64_t seed = 10;
  for (const float c : divisors()) {
    ++seed;
    for (std::uint64_t i = 0; i < kEach; ++i) ASSERT_TRUE(is_division(float_from_bits(random_bits(seed, i)), c));
    for (const float x :
         {0.0f, -0.0f, 0x1p-149f, -0x1p-149f, 0x1p-126f, kFloatMax, -kFloatMax, INFINITY, -INFINITY, NAN})
      ASSERT_TRUE(is_division(x, c));
  }
}

// Multiples of c and of midpoints between floats, and their neighbours.
TEST(Quotient, EqualsTheDivisionNextToTies) {
  constexpr std::uint64_t kEach = 100'000;
  std::uint64_t seed = 1000;
  for (const float c : divisors()) {
    ++seed;
    for (std::uint64_t i = 0; i < kEach; ++i) {
      // A float of 24 bits plus one half of its last unit, times c.
      const auto q = static_cast<double>(0x800000u | random_bits(seed, i) >> 9) + (i % 2 == 0 ? 0.5 : 0.0);
      const float x = static_cast<float>(std::ldexp(q * static_cast<double>(c), i % 3 == 0 ? -172 : -23));
      for (const float beside : {std::nextafterf(x, 0.0f), x, std::nextafterf(x, INFINITY)})
        ASSERT_TRUE(is_division(beside, c));
    }
  }
}

// A reciprocal in float is not precise enough.
TEST(Quotient, WithAReciprocalInFloatDiffersFromTheDivision) {
  int wrong = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const float x = 1.0f + static_cast<float>(i) * 0x1p-10f, c = 0.7f;
    wrong += x * (1.0f / c) != x / c;
  }
  EXPECT_GT(wrong, 0);
}

}  // namespace
}  // namespace fp8lab

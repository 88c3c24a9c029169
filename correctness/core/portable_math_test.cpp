#include "core/portable_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "core/rotary.h"
#include "reference/test_data.h"

// Compared with libm's functions of long double, whose error is far below a double's ulp. Errors are in ulps of the
// result.
namespace fp8lab::portable {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double ulp(long double value) {
  const double magnitude = std::fabs(static_cast<double>(value));
  return std::nextafter(magnitude, kInfinity) - magnitude;
}

double uniform(std::uint64_t seed, std::uint64_t index, double low, double high) {
  return low +
         (high - low) * static_cast<double>(reference::scramble(reference::scramble(seed) ^ index) >> 11) * 0x1p-53;
}

/// The largest error of `tested` against `exact`, in units of `unit(exact)`, for arguments from `low` to `high`.
double largest_error(const std::function<double(double)>& tested, const std::function<long double(long double)>& exact,
                     const std::function<double(long double)>& unit, double low, double high) {
  double largest = 0.0;
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const double x = uniform(1, i, low, high);
    const long double expected = exact(x);
    largest = std::max(largest, static_cast<double>(std::fabs(tested(x) - expected)) / unit(expected));
  }
  return largest;
}

TEST(PortableMath, ExponentialAndLogarithmAreWithinTheirBounds) {
  const auto exact_exp = [](long double x) { return std::exp(x); };
  const auto exact_log = [](long double x) { return std::log(x); };
  EXPECT_LT(largest_error(exponential, exact_exp, ulp, -708.0, 709.0), 3.0);
  EXPECT_LT(largest_error(exponential, exact_exp, ulp, -1.0, 1.0), 3.0);
  for (const double high : {1.5, 3.0, 1e6, 1e300})
    EXPECT_LT(largest_error(logarithm, exact_log, ulp, 0.5, high), 3.0) << high;
  EXPECT_LT(largest_error(logarithm, exact_log, ulp, 1e-320, 1e-310), 3.0);
  EXPECT_LT(largest_error(logarithm, exact_log, ulp, 1.0 - 1e-6, 1.0 + 1e-6), 3.0);
}

TEST(PortableMath, SineAndCosineAreWithinTheirBound) {
  const auto unit = [](long double) { return 0x1p-52; };
  for (const double high : {1.0, 7.0, 1e3, 0x1p20}) {
    EXPECT_LT(largest_error([](double x) { return sine_and_cosine(x).sine; }, [](long double x) { return std::sin(x); },
                            unit, -high, high),
              1.0);
    EXPECT_LT(largest_error([](double x) { return sine_and_cosine(x).cosine; },
                            [](long double x) { return std::cos(x); }, unit, -high, high),
              1.0);
  }
}

TEST(PortableMath, PowerIsWithinOneUlpForEachFactor) {
  for (const double base : {0.9, 0.95, 0.999, 0.99999})
    for (const std::int64_t exponent : {2, 3, 10, 1000, 123456}) {
      const long double expected = std::pow(static_cast<long double>(base), static_cast<long double>(exponent));
      const double error = static_cast<double>(std::fabs(power(base, exponent) - expected));
      EXPECT_LE(error, static_cast<double>(exponent) * ulp(expected)) << base << " " << exponent;
    }
  EXPECT_EQ(power(0.999, 0), 1.0);
  EXPECT_EQ(power(0.999, 1), 0.999);
}

TEST(PortableMath, EdgeCasesEqualLibm) {
  EXPECT_EQ(exponential(0.0), 1.0);
  EXPECT_EQ(exponential(-kInfinity), 0.0);
  EXPECT_EQ(exponential(-800.0), 0.0);
  EXPECT_EQ(exponential(kInfinity), kInfinity);
  EXPECT_EQ(exponential(710.0), kInfinity);
  EXPECT_LT(exponential(709.75), kInfinity);
  EXPECT_EQ(exponential(-745.0), 0x1p-1074);
  EXPECT_EQ(logarithm(1.0), 0.0);
  EXPECT_EQ(logarithm(0.0), -kInfinity);
  EXPECT_EQ(logarithm(kInfinity), kInfinity);
  EXPECT_EQ(sine_and_cosine(0.0).sine, 0.0);
  EXPECT_EQ(sine_and_cosine(0.0).cosine, 1.0);
  EXPECT_TRUE(std::isnan(logarithm(-1.0)));
  for (const double none : {std::nan(""), kInfinity}) {
    EXPECT_TRUE(std::isnan(sine_and_cosine(none).sine));
    EXPECT_TRUE(std::isnan(sine_and_cosine(none).cosine));
  }
  EXPECT_TRUE(std::isnan(exponential(std::nan(""))));
  EXPECT_TRUE(std::isnan(logarithm(std::nan(""))));
}

// The bits differ if an operation is fused or computed by a library.
TEST(PortableMath, BitsHaveTheCommittedHash) {
  std::uint64_t hash = 0;
  const auto add = [&](double value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    hash = reference::scramble(hash ^ bits);
  };
  for (std::uint64_t i = 0; i < 10000; ++i) {
    add(exponential(uniform(2, i, -700.0, 700.0)));
    add(logarithm(uniform(3, i, 0.0, 1e6)));
    add(power(uniform(4, i, 0.9, 1.0), static_cast<std::int64_t>(i)));
    add(rotary_angle(static_cast<std::int64_t>(i), static_cast<std::int64_t>(i % 64), 128, 500000.0));
    const SineAndCosine both = sine_and_cosine(uniform(5, i, -1e5, 1e5));
    add(both.sine);
    add(both.cosine);
  }
  EXPECT_EQ(hash, 0xf6cf73f40423f695u) << std::hex << hash;
}

}  // namespace
}  // namespace fp8lab::portable

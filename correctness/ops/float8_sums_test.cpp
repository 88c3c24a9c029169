#include "reference/float8_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "reference/float8_reference.h"
#include "reference/test_data.h"

// The error bound for products on a GPU, compared with an emulation of its accumulators: the bound holds, and it
// refuses an accumulator with fewer bits than Hopper's.
namespace fp8lab {
namespace {

using reference::error_on;
using reference::kNeverPromoted;
using reference::MatrixUnit;
using reference::sum_on;

std::vector<double> products_of(std::size_t count, std::uint64_t seed) {
  std::vector<double> products(count);
  for (std::size_t i = 0; i < count; ++i)
    products[i] = reference::gaussian(seed, 2 * i) * reference::gaussian(seed, 2 * i + 1);
  return products;
}

double exact(const std::vector<double>& products) { return std::accumulate(products.begin(), products.end(), 0.0); }

TEST(Float8Sums, EmulationHasTheValuesMeasuredOnAGpu) {
  // 256 + 1.5 * 2 * 2^-5, of which 2^-5 is kept.
  EXPECT_EQ(sum_on({}, std::vector<double>{256.0, 3.0 * 0x1p-5}), 256.0 + 3.0 * 0x1p-5);
  EXPECT_EQ(sum_on({}, std::vector<double>{256.0, 1.5 * 0x1p-5, 1.5 * 0x1p-5}), 256.0 + 0x1p-4);
  EXPECT_EQ(sum_on({}, std::vector<double>{1.00006104}), 1.0);
  EXPECT_EQ(sum_on({}, std::vector<double>{1.00012207031250}), 1.00012207031250);
  EXPECT_EQ(sum_on({}, std::vector<double>(32, 448.0)), 32.0 * 448.0);
}

TEST(Float8Sums, EmulationStaysWithinItsBound) {
  for (const std::size_t promoted : {std::size_t{128}, kNeverPromoted})
    for (const std::size_t count : {1u, 32u, 33u, 128u, 300u, 4096u})
      for (std::uint64_t seed = 0; seed < 50; ++seed) {
        const MatrixUnit unit{.promoted_every = promoted};
        const std::vector<double> products = products_of(count, seed);
        EXPECT_LE(std::fabs(sum_on(unit, products) - exact(products)),
                  error_on(unit, products) + 1e-4 * std::sqrt(count))
            << count << " products, seed " << seed;
      }
}

TEST(Float8Sums, EmulationStaysWithinTheLikelyBound) {
  for (const std::size_t promoted : {std::size_t{128}, kNeverPromoted})
    for (const std::size_t count : {32u, 300u, 4096u, 14336u})
      for (std::uint64_t seed = 0; seed < 50; ++seed) {
        const MatrixUnit unit{.promoted_every = promoted};
        const std::vector<double> products = products_of(count, seed);
        const double bound = reference::likely_error_on(unit, products);
        EXPECT_LE(std::fabs(sum_on(unit, products) - exact(products)), bound) << count << " products, seed " << seed;
        EXPECT_LE(bound, error_on(unit, products));
      }
}

TEST(Float8Sums, LikelyBoundRefusesFewerBits) {
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<double> products = products_of(4096, seed);
    const double made = sum_on({.fraction_bits = 8}, products);
    refused += std::fabs(made - exact(products)) > reference::likely_error_on({}, products);
  }
  EXPECT_GT(refused, 25);
}

// Products of one sign: an accumulator that is never promoted exceeds the bound of promoted ones.
TEST(Float8Sums, BoundOfPromotedAccumulatorsRefusesFastAccumulation) {
  std::vector<double> products = products_of(14336, 1);
  for (double& product : products) product = std::fabs(product);
  const auto error = [&](const MatrixUnit& unit) { return std::fabs(sum_on(unit, products) - exact(products)); };
  EXPECT_LE(error({}), error_on({}, products));
  EXPECT_GT(error({.promoted_every = kNeverPromoted}), error_on({}, products));
}

TEST(Float8Sums, BoundRefusesAShorterAccumulator) {
  for (const std::size_t promoted : {std::size_t{128}, kNeverPromoted}) {
    int refused = 0;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const std::vector<double> products = products_of(128, seed);
      const double made = sum_on({.fraction_bits = 4, .promoted_every = promoted}, products);
      refused += std::fabs(made - exact(products)) > error_on({.promoted_every = promoted}, products);
    }
    EXPECT_GT(refused, 25);
  }
}

}  // namespace
}  // namespace fp8lab

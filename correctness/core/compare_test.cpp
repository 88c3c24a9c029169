// The comparisons that judge all other tests must fail when they should.

#include "reference/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace fp8lab::reference {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

bool mentions(const ::testing::AssertionResult& result, const std::string& text) {
  return std::string(result.message()).find(text) != std::string::npos;
}

TEST(Compare, IsCloseMatchesInfinitiesAndNansOnlyWithThemselves) {
  const Tolerance loose{.atol = 1e30, .rtol = 1e30};
  EXPECT_TRUE(is_close(kNan, kNan, {}));
  EXPECT_FALSE(is_close(kNan, 1, loose));
  EXPECT_FALSE(is_close(1, kNan, loose));
  EXPECT_TRUE(is_close(kInf, kInf, {}));
  EXPECT_FALSE(is_close(kInf, -kInf, loose));
  EXPECT_FALSE(is_close(1, kInf, loose));
  EXPECT_FALSE(is_close(kInf, 1, loose));
  EXPECT_FALSE(is_close(1, 1, {.atol = kNan}));
}

TEST(Compare, IsCloseAddsBothTolerances) {
  EXPECT_TRUE(is_close(10.5, 10, {.atol = 0.5}));
  EXPECT_FALSE(is_close(10.5, 10, {.atol = 0.4375}));
  EXPECT_TRUE(is_close(-10.5, -10, {.atol = 0.25, .rtol = 0.025}));
  EXPECT_FALSE(is_close(10.5, 10, {.atol = 0.25, .rtol = 0.0125}));
}

TEST(Compare, AllCloseReportsTheFirstAndTheWorstDifference) {
  const std::vector<float> expected{1, 2, 3, 4};
  EXPECT_TRUE(all_close(expected, expected, {}));
  const auto result = all_close(std::vector<float>{1, 2.5f, 3, 6}, expected, {.atol = 0.25});
  EXPECT_FALSE(result);
  EXPECT_TRUE(mentions(result, "2 of 4")) << result.message();
  EXPECT_TRUE(mentions(result, "first [1] is 2.5, expected 2")) << result.message();
  EXPECT_TRUE(mentions(result, "worst [3] is 6, expected 4")) << result.message();
  EXPECT_TRUE(mentions(all_close(std::vector<double>{1, kNan, 9, 4}, expected, {.atol = 1}), "worst [1] is nan"));
  EXPECT_FALSE(all_close(std::vector<float>{1, 2, 3}, expected, {.atol = 1e9}));
}

TEST(Compare, BitwiseEqualDistinguishesSignsAndNanPayloads) {
  const std::vector<float> zeros{0.0f, 0.0f};
  EXPECT_TRUE(bitwise_equal(zeros, zeros));
  const auto result = bitwise_equal(std::vector<float>{0.0f, -0.0f}, zeros);
  EXPECT_FALSE(result);
  EXPECT_TRUE(mentions(result, "first [1] is 0x80000000, expected 0x00000000")) << result.message();
  const std::vector<float> nans{std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(bitwise_equal(nans, nans));
  EXPECT_FALSE(bitwise_equal(zeros, std::vector<float>{0.0f}));
}

TEST(Compare, Sqnr) {
  const std::vector<double> signal{3, 4};
  EXPECT_NEAR(sqnr_db(signal, std::vector<double>{3, 4.5}), 20, 1e-12);
  EXPECT_EQ(sqnr_db(signal, signal), kInf);
  EXPECT_EQ(sqnr_db(std::vector<double>{0, 0}, signal), -kInf);
  EXPECT_TRUE(std::isnan(sqnr_db(signal, std::vector<double>{3, kNan})));
  EXPECT_TRUE(std::isnan(sqnr_db(signal, std::vector<double>{3, kInf})));
  EXPECT_TRUE(std::isnan(sqnr_db(signal, std::vector<double>{3})));
}

}  // namespace
}  // namespace fp8lab::reference

#include "harness/train/teacher.h"

#include <gtest/gtest.h>

#include "reference/test_data.h"

namespace fp8lab {
namespace {

constexpr std::int64_t kHidden = 24;

std::vector<float> inputs(std::int64_t rows) { return reference::gaussian_values(rows * kHidden, 5, 1.0, 0); }

TEST(Teacher, MakesATargetOfItsOwnRowOnly) {
  const Teacher teacher(7, kHidden, false);
  const std::vector<float> x = inputs(9), all = teacher.targets_of(x);
  for (std::int64_t row = 0; row < 9; ++row) {
    const std::vector<float> one(x.begin() + row * kHidden, x.begin() + (row + 1) * kHidden);
    EXPECT_EQ(teacher.targets_of(one),
              std::vector<float>(all.begin() + row * kHidden, all.begin() + (row + 1) * kHidden));
  }
}

TEST(Teacher, FollowsFromTheSeedAndAddsTheResidualStream) {
  const std::vector<float> x = inputs(3), targets = Teacher(7, kHidden, false).targets_of(x);
  EXPECT_EQ(Teacher(7, kHidden, false).targets_of(x), targets);
  EXPECT_NE(Teacher(8, kHidden, false).targets_of(x), targets);
  const std::vector<float> added = Teacher(7, kHidden, true).targets_of(x);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(added[i], targets[i] + x[i], 1e-6);
}

// A quarter of w2's deviation squared times eight rows, of which half are positive: 8 / 4 / 2 = 1.
TEST(Teacher, MakesTargetsWithAMeanSquareOfAboutOne) {
  double squares = 0.0;
  const std::vector<float> targets = Teacher(7, kHidden, false).targets_of(inputs(400));
  for (const float value : targets) squares += static_cast<double>(value) * static_cast<double>(value);
  EXPECT_NEAR(squares / static_cast<double>(targets.size()), 1.0, 0.4);
}

// relu(-u) + relu(u) = |u| is even, and the difference is linear: T(x) - T(-x) is a linear function of x.
TEST(Teacher, IsANetworkOfTwoLayersWithARelu) {
  const Teacher teacher(7, kHidden, false);
  const auto odd_part = [&](const std::vector<float>& x) {
    std::vector<float> negative = x;
    for (float& value : negative) value = -value;
    std::vector<float> out = teacher.targets_of(x);
    const std::vector<float> other = teacher.targets_of(negative);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] -= other[i];
    return out;
  };
  const std::vector<float> both = inputs(2), a(both.begin(), both.begin() + kHidden),
                           b(both.begin() + kHidden, both.end());
  std::vector<float> sum = a;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  const std::vector<float> of_a = odd_part(a), of_b = odd_part(b), of_sum = odd_part(sum);
  bool is_linear = true;
  const std::vector<float> t_a = teacher.targets_of(a), t_b = teacher.targets_of(b), t_sum = teacher.targets_of(sum);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    EXPECT_NEAR(of_sum[i], of_a[i] + of_b[i], 1e-5);
    is_linear = is_linear && std::abs(t_sum[i] - t_a[i] - t_b[i]) < 1e-3f;
  }
  EXPECT_FALSE(is_linear);
}

}  // namespace
}  // namespace fp8lab

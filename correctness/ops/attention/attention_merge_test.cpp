#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "ops/attention/attention_fixture.h"

// The kernel that merges attention over two sets of keys.
namespace fp8lab::attention_test {
namespace {

class AttentionMerge : public AttentionTest {
 protected:
  struct Merged {
    float lse;
    float o;
  };
  Merged merge(float lse, float o, float part_lse, float part_o) {
    const Tensor all = make_scalar(device_, o), all_lse = make_scalar(device_, lse),
                 part = make_scalar(device_, part_o), of_part = make_scalar(device_, part_lse);
    const auto one = [](const Tensor& tensor) { return tensor.reshaped(Shape{1, 1}).view(); };
    device_.launch(
        &KernelTable::attention_merge,
        AttentionMergeArgs{
            .part_o = one(part), .part_lse = one(of_part), .o = one(all), .lse = one(all_lse), .batch = 1, .heads = 1});
    return {.lse = device_.read(all_lse)[0], .o = device_.read(all)[0]};
  }
};

TEST_F(AttentionMerge, WeighsBothPartsByTheirSums) {
  for (const auto& [lse, part_lse] : {std::pair{0.0f, 0.0f}, {3.0f, -2.0f}, {-80.0f, -79.5f}, {1.0f, 60.0f}}) {
    const Merged merged = merge(lse, 5.0f, part_lse, -3.0f);
    const double a = std::exp(static_cast<double>(lse)), b = std::exp(static_cast<double>(part_lse));
    EXPECT_NEAR(merged.lse, std::log(a + b), 0x1p-22 * std::max(1.0, std::fabs(std::log(a + b))));
    EXPECT_NEAR(merged.o, (5.0 * a - 3.0 * b) / (a + b), 0x1p-20);
  }
}

TEST_F(AttentionMerge, PartWithoutVisibleKeysChangesNothing) {
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const Merged kept = merge(2.5f, 5.0f, kNothing, 0.0f), taken = merge(kNothing, 0.0f, 2.5f, 5.0f),
               neither = merge(kNothing, 0.0f, kNothing, 0.0f);
  EXPECT_EQ(kept.lse, 2.5f);
  EXPECT_EQ(kept.o, 5.0f);
  EXPECT_EQ(taken.lse, 2.5f);
  EXPECT_EQ(taken.o, 5.0f);
  EXPECT_EQ(neither.lse, kNothing);
  EXPECT_EQ(neither.o, 0.0f);
}

TEST_F(AttentionMerge, NaNInEitherPartStays) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Merged& merged : {merge(nan, 1.0f, 0.0f, 1.0f), merge(0.0f, 1.0f, nan, 1.0f)}) {
    EXPECT_TRUE(std::isnan(merged.lse));
    EXPECT_TRUE(std::isnan(merged.o));
  }
  EXPECT_TRUE(std::isnan(merge(0.0f, nan, 0.0f, 1.0f).o));
}

}  // namespace
}  // namespace fp8lab::attention_test

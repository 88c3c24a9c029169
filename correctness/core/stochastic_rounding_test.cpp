#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>

#include "core/float16.h"

namespace fp8lab {
namespace {

bool is_bf16(float x) { return (float_bits(x) & 0xFFFFu) == 0; }

// All 2^16 draws that differ: the mean is the value itself, exactly, and only its two neighbours are drawn.
TEST(StochasticRounding, HasTheValueItselfAsItsMean) {
  for (const float x : {1.0f, 1.00001f, -1.0039f, 3.14159f, 0x1.fffffep-1f, -0x1.8001p-7f, 0x1.23p-130f, -1e-40f, 6e37f,
                        0x1.fe0002p126f}) {
    double sum = 0.0;
    std::set<float> drawn;
    for (std::uint32_t draw = 0; draw < 1u << 16; ++draw) {
      const float rounded = stochastic_bf16(x, draw << 16 | 0xABCDu);
      ASSERT_TRUE(is_bf16(rounded)) << x;
      sum += static_cast<double>(rounded);
      drawn.insert(rounded);
    }
    EXPECT_EQ(sum * 0x1p-16, static_cast<double>(x)) << x;
    EXPECT_EQ(drawn.size(), is_bf16(x) ? 1u : 2u) << x;
    EXPECT_TRUE(drawn.contains(bf16_to_f32(f32_to_bf16(x)))) << x;  // the nearest is a neighbour
  }
}

TEST(StochasticRounding, KeepsWhatCannotBeRounded) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kLargest = 0x1.fep127f;
  for (const std::uint32_t draw : {0u, 0x80000000u, 0xFFFFFFFFu}) {
    for (const float x : {0.0f, -0.0f, kInf, -kInf, kLargest, -kLargest, 1.5f})
      EXPECT_EQ(float_bits(stochastic_bf16(x, draw)), float_bits(x)) << x;
    EXPECT_TRUE(std::isnan(stochastic_bf16(std::numeric_limits<float>::quiet_NaN(), draw)));
    EXPECT_EQ(stochastic_bf16(kFloatMax, draw), kLargest);
    EXPECT_EQ(stochastic_bf16(-kFloatMax, draw), -kLargest);
  }
}

}  // namespace
}  // namespace fp8lab

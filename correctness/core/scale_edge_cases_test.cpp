// scale_from_amax() from amax to scale, and every E8M0 byte. Every amax of the E8M0 rules is in
// exhaustive_conversion_test.cpp.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/float8.h"
#include "reference/e8m0_reference.h"

namespace fp8lab {
namespace {

constexpr float kMinFloat = 0x1p-149f;

std::uint8_t rceil(float amax) { return e8m0_rceil(amax, E4M3::kMax); }
std::uint8_t floor_byte(float amax) { return e8m0_floor(amax, E4M3::kEmax); }
std::uint8_t mx_encode(float x, std::uint8_t byte) { return f32_to_e4m3(x * e8m0_multiplier(byte)); }
float mx_decode(std::uint8_t code, std::uint8_t byte) { return e4m3_to_f32(code) * e8m0_to_f32(byte); }

TEST(Scale, IsTheLargestValueOverTheAmax) {
  EXPECT_EQ(scale_from_amax(448.0f, E4M3::kMax, 0.0f, false), 1.0f);
  EXPECT_EQ(scale_from_amax(3.0f, E4M3::kMax, 0.0f, false), 448.0f / 3.0f);
  EXPECT_EQ(scale_from_amax(3.0f, E5M2::kMax, 0.0f, false), 57344.0f / 3.0f);
  EXPECT_EQ(scale_from_amax(3.0f, E4M3::kMax, 0.0f, true), 128.0f);
  EXPECT_EQ(scale_from_amax(3.5f, E4M3::kMax, 0.0f, true), 128.0f);
  EXPECT_EQ(scale_from_amax(std::nextafterf(3.5f, 4.0f), E4M3::kMax, 0.0f, true), 64.0f);
  EXPECT_EQ(scale_from_amax(kFloatMax, E4M3::kMax, 0.0f, false), 448.0f / kFloatMax);
}

TEST(Scale, EpsilonBoundsTheAmaxFromBelow) {
  EXPECT_EQ(scale_from_amax(0.0f, E4M3::kMax, 0.5f, false), 896.0f);
  EXPECT_EQ(scale_from_amax(0.25f, E4M3::kMax, 0.5f, false), 896.0f);
  EXPECT_EQ(scale_from_amax(0.75f, E4M3::kMax, 0.5f, false), 448.0f / 0.75f);
}

TEST(Scale, IsOneIfTheAmaxIsZeroOrNotFinite) {
  for (const bool power_of_two : {false, true}) {
    for (const float epsilon : {0.0f, 1e-12f}) {
      EXPECT_EQ(scale_from_amax(INFINITY, E4M3::kMax, epsilon, power_of_two), 1.0f);
      EXPECT_EQ(scale_from_amax(std::numeric_limits<float>::quiet_NaN(), E4M3::kMax, epsilon, power_of_two), 1.0f);
    }
    EXPECT_EQ(scale_from_amax(0.0f, E4M3::kMax, 0.0f, power_of_two), 1.0f);
    EXPECT_EQ(scale_from_amax(-0.0f, E4M3::kMax, 0.0f, power_of_two), 1.0f);
  }
}

TEST(Scale, DividingByTheInverseScaleGivesOtherData) {
  // x * (448 / a) and x / (a / 448) differ at ties of BF16 input. The number of differences shows a change of the order
  // of operations: hundreds in a million are expected.
  int different = 0;
  int total = 0;
  for (std::uint32_t a = 0x3F80; a < 0x4000; ++a) {
    const float amax = bf16_to_f32({static_cast<std::uint16_t>(a)});
    const float scale = scale_from_amax(amax, E4M3::kMax, 0.0f, false);
    const float divisor = amax / E4M3::kMax;
    for (std::uint32_t x = 0x3C00; x <= a; ++x, ++total) {
      const float value = bf16_to_f32({static_cast<std::uint16_t>(x)});
      different += f32_to_e4m3(value * scale) != f32_to_e4m3(value / divisor) ? 1 : 0;
    }
  }
  const double per_million = 1e6 * different / total;
  EXPECT_GT(per_million, 100.0);
  EXPECT_LT(per_million, 500.0);
}

TEST(ScaleEdgeCase, SmallestSubnormalAmaxOverflowsToTheLargestFloat) {
  EXPECT_EQ(scale_from_amax(kMinFloat, E4M3::kMax, 0.0f, false), kFloatMax);
  EXPECT_EQ(scale_from_amax(kMinFloat, E4M3::kMax, 0.0f, true), 0x1p127f);
  const float scale_inv = 1.0f / scale_from_amax(kMinFloat, E4M3::kMax, 0.0f, false);
  EXPECT_EQ(float_bits(scale_inv), 0x00200000u);  // 2^-128, subnormal and not flushed
}

TEST(Scale, HasAFiniteInverse) {
  const float margin32 = std::ldexp(E4M3::kMax, -32);
  for (const float amax : {1e32f, 3e38f, kFloatMax}) {
    const float scale = scale_from_amax(amax, margin32, 0.0f, false);
    EXPECT_EQ(scale, 0x1p-126f) << amax;
    EXPECT_EQ(1.0f / scale, 0x1p126f);
  }
  EXPECT_EQ(scale_from_amax(1.0f, margin32, 0.0f, false), margin32);
}

TEST(ScaleEdgeCase, ExtremeScaleBytes) {
  EXPECT_EQ(float_bits(e8m0_to_f32(0)), 0x00400000u);
  EXPECT_EQ(e8m0_to_f32(1), 0x1p-126f);
  EXPECT_EQ(e8m0_to_f32(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
  EXPECT_EQ(e8m0_multiplier(0), 0x1p127f);
  EXPECT_EQ(e8m0_multiplier(253), 0x1p-126f);
  EXPECT_EQ(float_bits(e8m0_multiplier(254)), 0x00400000u);
  EXPECT_TRUE(std::isnan(e8m0_multiplier(255)));
  for (int byte = 0; byte < 255; ++byte) {
    const auto b = static_cast<std::uint8_t>(byte);
    EXPECT_EQ(static_cast<double>(e8m0_to_f32(b)), std::ldexp(1.0, byte - 127));
    EXPECT_EQ(static_cast<double>(e8m0_multiplier(b)), std::ldexp(1.0, 127 - byte));
  }
}

TEST(ScaleEdgeCase, InfiniteOrNanAmaxGivesABlockOfNans) {
  for (const std::uint32_t bits : {0x7F800000u, 0x7FC00000u, 0x7F800001u, 0xFFC00000u}) {
    EXPECT_EQ(rceil(float_from_bits(bits)), 255) << bits;
    EXPECT_EQ(floor_byte(float_from_bits(bits)), 255) << bits;
  }
  EXPECT_EQ(mx_encode(1.0f, 255), 0x7F);
  EXPECT_TRUE(std::isnan(mx_decode(0x38, 255)));
  EXPECT_EQ(rceil(0.0f), 0);
  EXPECT_EQ(floor_byte(0.0f), 0);
}

TEST(E8M0Reference, StepsAgreeWithTheDefinition) {
  std::uint32_t first = 0;
  for (const reference::Step& step : reference::e8m0_rceil_steps(448)) {
    EXPECT_EQ(static_cast<std::uint32_t>(reference::e8m0_rceil(static_cast<double>(float_from_bits(first)), 448)),
              step.value);
    EXPECT_EQ(
        static_cast<std::uint32_t>(reference::e8m0_rceil(static_cast<double>(float_from_bits(step.last_bits)), 448)),
        step.value);
    first = step.last_bits + 1;
  }
  first = 0;
  for (const reference::Step& step : reference::e8m0_floor_steps(8)) {
    EXPECT_EQ(static_cast<std::uint32_t>(reference::e8m0_floor(static_cast<double>(float_from_bits(first)), 8)),
              step.value);
    EXPECT_EQ(
        static_cast<std::uint32_t>(reference::e8m0_floor(static_cast<double>(float_from_bits(step.last_bits)), 8)),
        step.value);
    first = step.last_bits + 1;
  }
}

}  // namespace
}  // namespace fp8lab

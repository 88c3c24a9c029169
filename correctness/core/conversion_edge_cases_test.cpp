// Conversions at the edges of the formats, as literal bit patterns. All values of each type and all floats are in
// float8_test.cpp and exhaustive_conversion_test.cpp, edges of scales in scale_edge_cases_test.cpp.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "core/float8.h"

namespace fp8lab {
namespace {

float next_up(float x) { return std::nextafterf(x, INFINITY); }
float next_down(float x) { return std::nextafterf(x, -INFINITY); }

TEST(ConversionEdgeCase, MinusZeroAndUnderflowKeepTheSign) {
  EXPECT_EQ(f32_to_e4m3(-0.0f), 0x80);
  EXPECT_EQ(f32_to_e4m3(-0x1p-12f), 0x80);
  EXPECT_EQ(f32_to_e5m2(-0.0f), 0x80);
  EXPECT_EQ(f32_to_e5m2(-0x1p-20f), 0x80);
  EXPECT_EQ(f32_to_e4m3(float_from_bits(0x80000001)), 0x80);
  EXPECT_EQ(float_bits(e4m3_to_f32(0x80)), 0x80000000u);
}

TEST(ConversionEdgeCase, HalfTheSmallestE4M3SubnormalTiesToZero) {
  EXPECT_EQ(f32_to_e4m3(0x1p-10f), 0x00);
  EXPECT_EQ(f32_to_e4m3(float_from_bits(0x3A800001)), 0x01);
  EXPECT_EQ(f32_to_e4m3(float_from_bits(0xBA800001)), 0x81);
}

TEST(ConversionEdgeCase, SubnormalTieGoesToEven) {
  EXPECT_EQ(f32_to_e4m3(1.5f * 0x1p-9f), 0x02);
  EXPECT_EQ(f32_to_e4m3(next_down(1.5f * 0x1p-9f)), 0x01);
  EXPECT_EQ(f32_to_e4m3(2.5f * 0x1p-9f), 0x02);
}

TEST(ConversionEdgeCase, HalfTheSmallestE5M2SubnormalTiesToZero) {
  EXPECT_EQ(f32_to_e5m2(0x1p-17f), 0x00);
  EXPECT_EQ(f32_to_e5m2(float_from_bits(0x37000001)), 0x01);
}

TEST(ConversionEdgeCase, LargestSubnormalRoundsUpToTheSmallestNormal) {
  EXPECT_EQ(f32_to_e4m3(7.5f * 0x1p-9f), 0x08);
  EXPECT_EQ(f32_to_e4m3(next_down(7.5f * 0x1p-9f)), 0x07);
  EXPECT_EQ(f32_to_e5m2(3.5f * 0x1p-16f), 0x04);
  EXPECT_EQ(f32_to_e5m2(next_down(3.5f * 0x1p-16f)), 0x03);
}

TEST(ConversionEdgeCase, TieCarriesIntoTheNextExponent) {
  EXPECT_EQ(f32_to_e4m3(15.5f), 0x58);
  EXPECT_EQ(e4m3_to_f32(0x58), 16.0f);
  EXPECT_EQ(f32_to_e4m3(next_down(15.5f)), 0x57);
  EXPECT_EQ(f32_to_e5m2(15.0f), 0x4C);
  EXPECT_EQ(e5m2_to_f32(0x4C), 16.0f);
}

TEST(ConversionEdgeCase, E4M3OverflowSaturates) {
  EXPECT_EQ(f32_to_e4m3(464.0f), 0x7E);
  EXPECT_EQ(f32_to_e4m3(next_up(464.0f)), 0x7E);
  EXPECT_EQ(f32_to_e4m3(480.0f), 0x7E);
  EXPECT_EQ(f32_to_e4m3(-480.0f), 0xFE);
  EXPECT_EQ(f32_to_e4m3(kFloatMax), 0x7E);
  EXPECT_EQ(f32_to_e4m3(432.0f), 0x7E);  // the last tie in range
  EXPECT_EQ(f32_to_e4m3(next_down(432.0f)), 0x7D);
}

TEST(ConversionEdgeCase, E5M2OverflowSaturates) {
  EXPECT_EQ(f32_to_e5m2(61440.0f), 0x7B);
  EXPECT_EQ(f32_to_e5m2(next_down(61440.0f)), 0x7B);
  EXPECT_EQ(f32_to_e5m2(-61440.0f), 0xFB);
  EXPECT_EQ(encode<E5M2>(Half{0x7BFF}), 0x7B);  // 65504
  EXPECT_EQ(encode<E4M3>(Half{0x7BFF}), 0x7E);
}

TEST(ConversionEdgeCase, InfinitiesSaturate) {
  EXPECT_EQ(f32_to_e4m3(INFINITY), 0x7E);
  EXPECT_EQ(f32_to_e4m3(-INFINITY), 0xFE);
  EXPECT_EQ(f32_to_e5m2(INFINITY), 0x7B);
  EXPECT_EQ(f32_to_e5m2(-INFINITY), 0xFB);
  EXPECT_EQ(encode<E4M3>(BFloat16{0xFF80}), 0xFE);
  EXPECT_EQ(encode<E5M2>(Half{0x7C00}), 0x7B);
}

TEST(ConversionEdgeCase, EveryNanBecomesThePositiveCanonicalNan) {
  for (const std::uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFF800001u, 0x7FC12345u, 0xFFFFFFFFu}) {
    EXPECT_EQ(f32_to_e4m3(float_from_bits(bits)), 0x7F) << bits;
    EXPECT_EQ(f32_to_e5m2(float_from_bits(bits)), 0x7F) << bits;
    EXPECT_EQ(f32_to_bf16(float_from_bits(bits)).bits, bits >> 31 != 0 ? 0xFFC0 : 0x7FC0) << bits;
    EXPECT_EQ(f32_to_f16(float_from_bits(bits)).bits, bits >> 31 != 0 ? 0xFE00 : 0x7E00) << bits;
  }
  EXPECT_EQ(encode<E4M3>(BFloat16{0xFF81}), 0x7F);
  EXPECT_EQ(encode<E5M2>(Half{0xFC01}), 0x7F);
}

TEST(ConversionEdgeCase, InfinitiesAndNansDecode) {
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0x7F)) && std::isnan(e4m3_to_f32(0xFF)));
  EXPECT_EQ(e5m2_to_f32(0x7C), INFINITY);
  EXPECT_EQ(e5m2_to_f32(0xFC), -INFINITY);
  for (const std::uint8_t code : {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}) EXPECT_TRUE(std::isnan(e5m2_to_f32(code)));
}

TEST(ConversionEdgeCase, OneUlpBeyondATieIsLostThroughBF16) {
  // 1.0625 lies midway between 1 (0x38) and 1.125 (0x39) and is a BF16 value.
  EXPECT_EQ(f32_to_e4m3(float_from_bits(0x3F880000)), 0x38);
  EXPECT_EQ(f32_to_e4m3(float_from_bits(0x3F880001)), 0x39);
  EXPECT_EQ(encode<E4M3>(f32_to_bf16(float_from_bits(0x3F880001))), 0x38);
  // 1.1875, between 1.125 (0x39) and 1.25 (0x3A), from below.
  EXPECT_EQ(f32_to_e4m3(float_from_bits(0x3F97FFFF)), 0x39);
  EXPECT_EQ(encode<E4M3>(f32_to_bf16(float_from_bits(0x3F97FFFF))), 0x3A);
}

}  // namespace
}  // namespace fp8lab

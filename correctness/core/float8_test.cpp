// FP8 and 16-bit conversions over all 256 codes of a type and every 16-bit input; properties of the formats.
// All float inputs are in exhaustive_conversion_test.cpp.

#include "core/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "core/float8_format.h"
#include "reference/float8_reference.h"
#include "support/error_of.h"

namespace fp8lab {
namespace {

using reference::SmallFloat;

// Conversions are constant expressions, in device code too.
static_assert(f32_to_e4m3(1.0f) == 0x38 && f32_to_e5m2(1.0f) == 0x3C);
static_assert(e4m3_to_f32(0x7E) == E4M3::kMax && e5m2_to_f32(0x7B) == E5M2::kMax);
static_assert(std::is_trivially_copyable_v<BFloat16> && sizeof(BFloat16) == 2);
static_assert(std::is_trivially_copyable_v<Half> && sizeof(Half) == 2);

/// Equal as doubles, signs of zeros and NaNs included.
::testing::AssertionResult same_value(float actual, double expected, bool negative) {
  const bool same = std::isnan(expected) ? std::isnan(actual) : static_cast<double>(actual) == expected;
  if (same && std::signbit(actual) == negative) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << actual << ", expected " << expected << (negative ? " (negative)" : "");
}

template <class Format>
void expect_every_byte_right(reference::SmallFloatLayout layout) {
  const SmallFloat expected(layout);
  for (unsigned code = 0; code < 256; ++code) {
    const float value = decode<Format>(static_cast<std::uint8_t>(code));
    EXPECT_TRUE(same_value(value, expected.decode(code), code >= 0x80)) << "code " << code;
    // On the way back infinities saturate and NaNs become canonical.
    const unsigned sign = code & 0x80u;
    const unsigned back = std::isnan(value) ? kFloat8Nan : std::isinf(value) ? (sign | Format::kMaxCode) : code;
    EXPECT_EQ(encode<Format>(value), back) << "code " << code;
  }
  const float nan = decode<Format>(0xFF);
  EXPECT_EQ(float_bits(nan) & kFloatQuietNanBits, kFloatQuietNanBits) << "a decoded NaN must be quiet";
}

TEST(Float8, EveryByteDecodesAndEncodesBack) {
  expect_every_byte_right<E4M3>(reference::kE4M3Layout);
  expect_every_byte_right<E5M2>(reference::kE5M2Layout);
}

template <class Format>
void expect_properties_match(reference::SmallFloatLayout layout) {
  const SmallFloat expected(layout);
  EXPECT_EQ(Format::kMaxCode, expected.max_code());
  EXPECT_EQ(static_cast<double>(Format::kMax), expected.max());
  EXPECT_EQ(Format::kEmax, std::ilogb(expected.max()));
  EXPECT_EQ(static_cast<double>(Format::kMinSubnormal), expected.decode(1));
  EXPECT_EQ(static_cast<double>(Format::kMinNormal), expected.decode(1u << Format::kMantissaBits));
}

TEST(Float8, PropertiesAreThoseOfTheFormats) {
  expect_properties_match<E4M3>(reference::kE4M3Layout);
  expect_properties_match<E5M2>(reference::kE5M2Layout);
  EXPECT_EQ(float8_format(DType::kE4M3).max, 448.0f);
  EXPECT_EQ(float8_format(DType::kE4M3).emax, 8);
  EXPECT_EQ(float8_format(DType::kE5M2).max, 57344.0f);
  EXPECT_EQ(float8_format(DType::kE5M2).emax, 15);
}

TEST(Float8, FormatOfAnotherDtypeIsRefused) {
  const std::string error = support::error_of([&] { float8_format(DType::kBF16); });
  EXPECT_NE(error.find("bf16"), std::string::npos) << error;
}

template <class Format>
void expect_all_16_bit_inputs_right(reference::SmallFloatLayout layout) {
  const SmallFloat fp8(layout);
  const SmallFloat bf16(reference::kBFloat16Layout);
  const SmallFloat f16(reference::kFloat16Layout);
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto word = static_cast<std::uint16_t>(bits);
    EXPECT_EQ(encode<Format>(BFloat16{word}), fp8.encode(bf16.decode(bits))) << "bf16 " << bits;
    EXPECT_EQ(encode<Format>(Half{word}), fp8.encode(f16.decode(bits))) << "f16 " << bits;
  }
}

TEST(Float8, EncodesAll16BitInputs) {
  expect_all_16_bit_inputs_right<E4M3>(reference::kE4M3Layout);
  expect_all_16_bit_inputs_right<E5M2>(reference::kE5M2Layout);
}

TEST(Float16, WidensAllInputsAndNarrowsThemBack) {
  const SmallFloat bf16(reference::kBFloat16Layout);
  const SmallFloat f16(reference::kFloat16Layout);
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto word = static_cast<std::uint16_t>(bits);
    const bool negative = bits >= 0x8000;
    EXPECT_TRUE(same_value(bf16_to_f32({word}), bf16.decode(bits), negative)) << "bf16 " << bits;
    EXPECT_TRUE(same_value(f16_to_f32({word}), f16.decode(bits), negative)) << "f16 " << bits;
    const std::uint32_t sign = bits & 0x8000u;
    EXPECT_EQ(f32_to_bf16(bf16_to_f32({word})).bits, std::isnan(bf16.decode(bits)) ? (sign | 0x7FC0u) : bits);
    EXPECT_EQ(f32_to_f16(f16_to_f32({word})).bits, std::isnan(f16.decode(bits)) ? (sign | 0x7E00u) : bits);
  }
}

// The table's own search and the steps that the exhaustive test uses must be the same function.
TEST(Float8Reference, StepsAgreeWithTheSearch) {
  for (const auto layout : {reference::kE4M3Layout, reference::kE5M2Layout, reference::kBFloat16Layout}) {
    const SmallFloat expected(layout);
    for (const bool negative : {false, true}) {
      std::uint32_t first = 0;
      for (const reference::Step& step : expected.steps(negative)) {
        ASSERT_LE(first, step.last_bits);
        for (const std::uint32_t bits : {first, step.last_bits}) {
          const double value = static_cast<double>(float_from_bits(negative ? bits | 0x80000000u : bits));
          EXPECT_EQ(expected.encode(value), step.value) << "bits " << bits;
        }
        first = step.last_bits + 1;
      }
      EXPECT_EQ(first, 0x80000000u);
    }
  }
}

}  // namespace
}  // namespace fp8lab

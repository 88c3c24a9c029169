#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/float8.h"
#include "ops/quantize.h"
#include "reference/compare.h"
#include "support/quantize.h"

// Full tensors at the edges of the number range; each expected value is written out.
namespace fp8lab {
namespace {

using Bytes = std::vector<std::uint8_t>;
using support::bytes_of;
using support::format_named;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kFltMax = std::numeric_limits<float>::max();
const float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::uint8_t kNanCode = 0x7F;

class QuantizeEdge : public ::testing::Test {
 protected:
  struct Result {
    Bytes data;
    Bytes e8m0;              ///< the first scale of each block row, if scales are bytes
    float scale_inv = 0.0f;  ///< the first scale, if scales are floats
    std::vector<float> dequantized;
  };

  /// Quantizes `values` as one row.
  Result run(const std::string& format_name, const std::vector<float>& values, DType dtype = DType::kF32) {
    const QuantFormat format = format_named(format_name);
    const auto cols = static_cast<std::int64_t>(values.size());
    const Tensor x = support::make_tensor(*device_, {1, cols}, dtype, values);
    const QuantizedTensor q =
        support::quantized(*device_, x, format, {.orientations = {true, false}, .history_scale = history_scale_});
    Result result;
    result.data = bytes_of(*device_, q.rowwise().data);
    if (format.scale_dtype() == DType::kE8M0)
      result.e8m0 = bytes_of(*device_, q.rowwise().scale_inv);
    else
      result.scale_inv = device_->read(q.rowwise().scale_inv)[0];
    const Tensor values_again = dequantize(*device_, q.rowwise_operand(), DType::kF32, support::anyone(*device_));
    result.dequantized = device_->read(values_again);
    return result;
  }
  std::vector<float> block_of(float first, float rest, std::size_t count = 32) {
    std::vector<float> values(count, rest);
    values[0] = first;
    return values;
  }

  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  float history_scale_ = 1.0f;
};

const char* const kOwnScale[] = {"current_e4m3",     "current_e5m2",      "current_pow2", "block_1x128_pow2",
                                 "block_1x128_f32",  "block_128x128_f32", "mxfp8_rceil",  "mxfp8_floor",
                                 "mxfp8_rceil_e5m2", "mxfp8_floor_e5m2"};

TEST_F(QuantizeEdge, AllZeroHasAFiniteScaleAndZeroData) {
  for (const char* format : kOwnScale) {
    const Result result = run(format, std::vector<float>(64, 0.0f));
    EXPECT_EQ(result.data, Bytes(64, 0x00)) << format;
    if (result.e8m0.empty())
      EXPECT_EQ(result.scale_inv, 1.0f) << format;
    else
      EXPECT_EQ(result.e8m0[0], 0) << format;
    EXPECT_TRUE(reference::bitwise_equal(result.dequantized, std::vector<float>(64, 0.0f))) << format;
  }
}

TEST_F(QuantizeEdge, NegativeZerosKeepTheirSign) {
  for (const char* format : kOwnScale) {
    const Result result = run(format, std::vector<float>(64, -0.0f));
    EXPECT_EQ(result.data, Bytes(64, 0x80)) << format;
    EXPECT_TRUE(reference::bitwise_equal(result.dequantized, std::vector<float>(64, -0.0f))) << format;
  }
}

TEST_F(QuantizeEdge, AllNegativeIsMeasuredByMagnitude) {
  for (const char* format : kOwnScale) {
    const Result result = run(format, block_of(-448.0f, -7.0f));
    EXPECT_EQ(result.dequantized[0], -448.0f)
        << format;  // 448 * 2^7 is the largest value of E5M2, so both types represent both values
    EXPECT_EQ(result.dequantized[1], -7.0f) << format;
  }
}

// The quotient overflows, so the scale is the largest float, and the quantized data follow from that.
TEST_F(QuantizeEdge, SmallestSubnormalGivesTheLargestScale) {
  for (const char* format : {"current_e4m3", "block_1x128_f32"}) {
    const Result result = run(format, block_of(0x1p-149f, 0.0f));
    EXPECT_EQ(result.scale_inv, 1.0f / kFltMax) << format;
    EXPECT_EQ(result.data, Bytes(32, 0x00)) << format;  // 2^-149 * 2^128 = 2^-21, below half the smallest code
  }
  EXPECT_EQ(run("current_pow2", block_of(0x1p-149f, 0.0f)).scale_inv, 0x1p-127f);
}

TEST_F(QuantizeEdge, SmallestBf16SubnormalUnderMicroscaling) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const Result result = run("mxfp8_rceil", block_of(0x1p-133f, -0x1p-133f), dtype);
    EXPECT_EQ(result.e8m0[0], 0);
    EXPECT_EQ(result.data[0], 0x08);
    EXPECT_EQ(result.data[1], 0x88);
    EXPECT_EQ(result.dequantized[0], 0x1p-133f);
  }
}

// The one amax at which the float product differs from exact arithmetic, and the range that flush-to-zero would clip.
TEST_F(QuantizeEdge, TinyAmaxesAreNotFlushed) {
  const Result odd = run("mxfp8_rceil", block_of(float_from_bits(0x04600001), 0.0f));
  EXPECT_EQ(odd.e8m0[0], 0);
  EXPECT_EQ(odd.data[0], 0x7E);
  EXPECT_EQ(run("mxfp8_rceil", block_of(float_from_bits(0x04600000), 0.0f)).e8m0[0], 0);
  EXPECT_EQ(run("mxfp8_rceil", block_of(float_from_bits(0x04600002), 0.0f)).e8m0[0], 1);
  for (const float amax : {2.64e-36f, 3.0e-36f, 4.0e-36f, 5.26e-36f}) {
    const Result result = run("mxfp8_rceil", block_of(amax, 0.0f));
    EXPECT_EQ(result.e8m0[0], 1) << amax;  // 448 * 2^-127 = 2.633e-36 < amax <= 448 * 2^-126 = 5.266e-36
    EXPECT_NEAR(result.dequantized[0], amax, amax / 16) << "clipped";
  }
}

TEST_F(QuantizeEdge, AmaxAtAndNextToTheLargestValue) {
  for (const int k : {-20, -1, 0, 1, 30}) {
    const float amax = std::ldexp(448.0f, k);
    const float above = std::nextafterf(amax, kInf), below = std::nextafterf(amax, 0.0f);
    EXPECT_EQ(run("mxfp8_rceil", block_of(amax, 0.0f)).e8m0[0], 127 + k);
    EXPECT_EQ(run("mxfp8_rceil", block_of(below, 0.0f)).e8m0[0], 127 + k);
    EXPECT_EQ(run("mxfp8_rceil", block_of(above, 0.0f)).e8m0[0], 128 + k);
    EXPECT_EQ(run("mxfp8_rceil", block_of(amax, 0.0f)).data[0], 0x7E);
    EXPECT_EQ(run("mxfp8_rceil", block_of(above, 0.0f)).data[0], 0x76);  // 224, half of the code range
    EXPECT_EQ(run("current_e4m3", block_of(amax, 0.0f)).scale_inv, std::ldexp(1.0f, k));
    EXPECT_EQ(run("current_e4m3", block_of(above, 0.0f)).data[0], 0x7E);
    EXPECT_EQ(run("current_pow2", block_of(above, 0.0f)).scale_inv, std::ldexp(1.0f, k + 1));
    EXPECT_EQ(run("current_pow2", block_of(below, 0.0f)).scale_inv, std::ldexp(1.0f, k));
  }
}

// 512 less one ulp becomes 512 when it is rounded to BF16.
TEST_F(QuantizeEdge, FloorScaleDependsOnTheRoundingOfItsInput) {
  const float below_512 = float_from_bits(0x43FFFFFF);
  EXPECT_EQ(run("mxfp8_floor", block_of(below_512, 0.0f), DType::kF32).e8m0[0], 127);
  EXPECT_EQ(run("mxfp8_floor", block_of(below_512, 0.0f), DType::kBF16).e8m0[0], 128);
}

TEST_F(QuantizeEdge, RceilScaleStepsOneUlpAboveThreeAndAHalf) {
  EXPECT_EQ(run("mxfp8_rceil", block_of(float_from_bits(0x40600000), 0.0f)).e8m0[0], 120);
  EXPECT_EQ(run("mxfp8_rceil", block_of(float_from_bits(0x40600001), 0.0f)).e8m0[0], 121);
}

// Rounding up in the last binade exceeds the range of FP32.
TEST_F(QuantizeEdge, HugeAmaxesDequantizeToInf) {
  for (const float amax : {kFltMax, float_from_bits(0x7F780000)}) {
    const Result result = run("mxfp8_rceil", block_of(amax, 0.0f));
    EXPECT_EQ(result.e8m0[0], 247);
    EXPECT_EQ(result.data[0], 0x78);  // 256
    EXPECT_EQ(result.dequantized[0], kInf);
  }
  const Result below = run("mxfp8_rceil", block_of(float_from_bits(0x7F77FFFF), 0.0f));
  EXPECT_EQ(below.data[0], 0x77);  // 240
  EXPECT_EQ(below.dequantized[0], 240.0f * 0x1p120f);
  const Result floored = run("mxfp8_floor", block_of(kFltMax, 0.0f));
  EXPECT_EQ(floored.e8m0[0], 246);
  EXPECT_EQ(floored.dequantized[0], 448.0f * 0x1p119f);
}

TEST_F(QuantizeEdge, ExtremeScaleBytesDequantize) {
  const QuantFormat format = format_named("mxfp8_rceil");
  const Tensor x = support::make_tensor(*device_, {1, 96}, DType::kF32, std::vector<float>(96, 1.0f));
  const QuantizedTensor q = support::quantized(*device_, x, format, {.orientations = {true, false}});
  Bytes data = bytes_of(*device_, q.rowwise().data);
  Bytes scales = bytes_of(*device_, q.rowwise().scale_inv);
  for (std::size_t block = 0; block < 3; ++block) {
    data[32 * block] = 0x38;      // 1
    data[32 * block + 1] = 0x01;  // 2^-9
    data[32 * block + 2] = 0xFE;  // -448
    data[32 * block + 3] = 0x00;
  }
  scales[0] = 0;
  scales[1] = 254;
  scales[2] = 255;
  device_->write_bytes(q.rowwise().data, std::as_bytes(std::span(data)));
  device_->write_bytes(q.rowwise().scale_inv, std::as_bytes(std::span(scales)));
  const Tensor values = dequantize(*device_, q.rowwise_operand(), DType::kF32, support::anyone(*device_));
  const std::vector<float> actual = device_->read(values);
  EXPECT_EQ(actual[0], 0x1p-127f);
  EXPECT_EQ(actual[1], 0x1p-136f);
  EXPECT_EQ(actual[2], -448.0f * 0x1p-127f);
  EXPECT_EQ(actual[32], 0x1p127f);
  EXPECT_EQ(actual[33], 0x1p118f);
  EXPECT_EQ(actual[34], -kInf);
  EXPECT_EQ(actual[35], 0.0f);
  for (int i = 64; i < 96; ++i) EXPECT_TRUE(std::isnan(actual[static_cast<std::size_t>(i)])) << i;
}

TEST_F(QuantizeEdge, Amax480ClipsUnderFloorAndNotUnderRceil) {
  const Result floored = run("mxfp8_floor", block_of(480.0f, 1.0f));
  EXPECT_EQ(floored.e8m0[0], 127);
  EXPECT_EQ(floored.data[0], 0x7E);  // 448, clipped
  const Result ceiled = run("mxfp8_rceil", block_of(480.0f, 1.0f));
  EXPECT_EQ(ceiled.e8m0[0], 128);
  EXPECT_EQ(ceiled.data[0], 0x77);  // 240
  EXPECT_EQ(ceiled.dequantized[0], 480.0f);
}

TEST_F(QuantizeEdge, InfSaturatesAndNanStaysUnderOneScale) {
  struct Row {
    float special;
    std::uint8_t e4m3, e5m2;
  };
  for (const Row row :
       {Row{kInf, 0x7E, 0x7B}, {-kInf, 0xFE, 0xFB}, {kNan, kNanCode, kNanCode}, {-kNan, kNanCode, kNanCode}})
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      for (const char* format :
           {"current_e4m3", "current_e5m2", "current_pow2", "block_1x128_f32", "block_128x128_pow2"}) {
        const bool e5m2 = format_named(format).dtype == DType::kE5M2;
        const Result result = run(format, block_of(row.special, 2.0f, 100), dtype);
        EXPECT_EQ(result.scale_inv, 1.0f) << format;
        EXPECT_EQ(result.data[0], e5m2 ? row.e5m2 : row.e4m3) << format << " " << row.special;
        EXPECT_EQ(Bytes(result.data.begin() + 1, result.data.end()), Bytes(99, 0x40)) << format;
      }
}

TEST_F(QuantizeEdge, InfAndNanMakeOnlyTheirMicroscalingBlockNan) {
  for (const char* format : {"mxfp8_rceil", "mxfp8_floor", "mxfp8_rceil_e5m2", "mxfp8_floor_e5m2"})
    for (const float special : {kInf, -kInf, kNan})
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        std::vector<float> values(96, 2.0f);
        values[40] = special;
        const Result spoiled = run(format, values, dtype);
        values[40] = 2.0f;
        const Result clean = run(format, values, dtype);
        EXPECT_EQ(spoiled.e8m0[1], 255) << format;
        for (std::size_t i = 0; i < 96; ++i) {
          const bool inside = i >= 32 && i < 64;
          ASSERT_EQ(spoiled.data[i], inside ? kNanCode : clean.data[i]) << format << " " << i;
          ASSERT_EQ(std::isnan(spoiled.dequantized[i]), inside) << format << " " << i;
        }
        EXPECT_EQ(spoiled.e8m0[0], clean.e8m0[0]);
        EXPECT_EQ(spoiled.e8m0[2], clean.e8m0[2]);
      }
}

// Measured inside the cast (delayed) and before it (blocks, on request).
TEST_F(QuantizeEdge, AmaxOfATensorWithANanIsNan) {
  for (const char* format : {"delayed_e4m3", "mxfp8_rceil"})
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      for (const std::size_t at : {std::size_t{0}, std::size_t{777}, std::size_t{5000}}) {
        std::vector<float> values(5001, -3.0f);
        values[100] = kInf;
        const Tensor amax = support::scalar(*device_, 0.0f);
        const bool history = format_named(format).amax_source == AmaxSource::kHistory;
        const auto record = [&] {
          const Tensor x = support::make_tensor(*device_, {1, 5001}, dtype, values);
          quantize(*device_, x,
                   {.format = format_named(format),
                    .scale = history ? support::scalar(*device_, 1.0f) : Tensor{},
                    .amax = amax,
                    .holder = support::anyone(*device_)});
          return device_->read(amax)[0];
        };
        EXPECT_EQ(record(), kInf) << format;
        values[at] = kNan;
        EXPECT_TRUE(std::isnan(record())) << format;
        values[at] = 1.0f;
        EXPECT_TRUE(std::isnan(record())) << format << ": a NaN of before must stay";
      }
}

// A scale that no rule of the project gives still follows the scaling expression.
TEST_F(QuantizeEdge, UnusualScalesFollowTheScalingExpression) {
  const std::vector<float> finite = {0.0f, -0.0f, 1.0f, -2.0f, 1e-3f, 500.0f};
  std::vector<float> with_specials = finite;  // infinities and NaNs send their segment through another loop
  with_specials.insert(with_specials.end(), {kInf, kNan});
  for (const std::vector<float>& values : {finite, with_specials})
    for (const float scale : {kNan, kInf, -kInf, 0.0f, -1.5f, 0x1p-149f}) {
      history_scale_ = scale;
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const Result result = run("delayed_e4m3", values, dtype);
        for (std::size_t i = 0; i < values.size(); ++i) {
          const float x = dtype == DType::kBF16 ? bf16_to_f32(f32_to_bf16(values[i])) : values[i];
          EXPECT_EQ(result.data[i], encode<E4M3>(x * scale)) << values[i] << " * " << scale;
        }
      }
    }
}

TEST_F(QuantizeEdge, OnesInABlockWithTheLargestFloatBecomeZero) {
  const Result result = run("mxfp8_rceil", block_of(kFltMax, 1.0f));
  EXPECT_EQ(Bytes(result.data.begin() + 1, result.data.end()), Bytes(31, 0x00));
}

// Half of the smallest E4M3 subnormal is 448 * 2^10 = 458,752 times below the largest value.
TEST_F(QuantizeEdge, OutlierMakesOnlyItsOwnBlockZero) {
  std::vector<float> values(64, 1.0f);
  values[0] = 1.0e6f;
  const Result blocks = run("mxfp8_rceil", values);
  EXPECT_EQ(blocks.data[1], 0x00);
  EXPECT_EQ(blocks.data[32], 0x78);  // 1 at 2^-8: the byte of the second block is 127 - 8
  EXPECT_EQ(blocks.dequantized[32], 1.0f);
  EXPECT_EQ(run("current_e4m3", values).data[32], 0x00);
  EXPECT_NE(run("current_e5m2", values).data[32], 0x00) << "E5M2 reaches further down";
}

// A scale of earlier data: the number of saturated values follows from the rule.
TEST_F(QuantizeEdge, StaleScaleSaturates) {
  const std::vector<float> values = reference::gaussian_values(1 << 16, 11);
  const float amax = std::fabs(
      *std::max_element(values.begin(), values.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
  history_scale_ = 1000.0f * 448.0f / amax;
  const Result stale = run("delayed_e4m3", values);
  const auto saturated = [](const Bytes& data) {
    return std::count_if(data.begin(), data.end(), [](std::uint8_t code) { return (code & 0x7F) == 0x7E; });
  };
  // The midpoint of 416 and 448 is 432, a tie, which goes to the even code of the two, 448.
  const auto expected =
      std::count_if(values.begin(), values.end(), [&](float x) { return std::fabs(x * history_scale_) >= 432.0f; });
  EXPECT_EQ(saturated(stale.data), expected);
  EXPECT_GT(expected, (1 << 16) * 99 / 100);
  history_scale_ = 448.0f / amax;
  EXPECT_LT(saturated(run("delayed_e4m3", values).data), 3);
}

TEST_F(QuantizeEdge, EmptyMatricesHaveScalesAndNoData) {
  for (const support::NamedFormat& row : support::all_formats())
    for (const Shape& shape : {Shape{0, 64}, Shape{64, 0}, Shape{0, 0}}) {
      const Tensor x = device_->allocate({shape, DType::kBF16}, support::anyone(*device_));
      const Tensor amax = support::scalar(*device_, 0.25f);
      const bool history = row.format.amax_source == AmaxSource::kHistory;
      const QuantizedTensor q = quantize(*device_, x,
                                         {.format = row.format,
                                          .orientations = {true, true},
                                          .scale = history ? support::scalar(*device_, 4.0f) : Tensor{},
                                          .amax = amax,
                                          .holder = support::anyone(*device_)});
      EXPECT_EQ(q.rowwise().data.numel(), 0);
      EXPECT_EQ(q.columnwise().data.numel(), 0);
      EXPECT_EQ(device_->read(amax)[0], 0.25f) << "an empty tensor joins with nothing";
      if (row.format.per_tensor() && row.format.epsilon == 0) {
        EXPECT_EQ(device_->read(q.rowwise().scale_inv)[0], history ? 0.25f : 1.0f) << row.name;
      }
      for (const std::uint8_t byte : row.format.per_tensor() ? Bytes{} : bytes_of(*device_, q.rowwise().scale_inv))
        ASSERT_EQ(byte, 0) << row.name;
      const Tensor back = dequantize(*device_, q.rowwise_operand(), DType::kBF16, support::anyone(*device_));
      EXPECT_EQ(back.numel(), 0);
    }
}

}  // namespace
}  // namespace fp8lab

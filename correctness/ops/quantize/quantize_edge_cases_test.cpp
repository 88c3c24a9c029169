#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "core/float8.h"
#include "ops/quantize.h"
#include "support/quantize.h"

// Scales, amaxes and shapes that casts of usual tensors do not have. EveryFormat has the edges of the number range.
namespace fp8lab {
namespace {

using Bytes = std::vector<std::uint8_t>;
using support::bytes_of;
using support::format_named;

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

class QuantizeEdge : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
};

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
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const Tensor row = support::make_tensor(*device_, {1, static_cast<std::int64_t>(values.size())}, dtype, values);
        const QuantizedTensor q =
            support::quantized(*device_, row, format_named("delayed_e4m3"), {.history_scale = scale});
        const Bytes data = bytes_of(*device_, q.rowwise().data);
        for (std::size_t i = 0; i < values.size(); ++i) {
          const float x = dtype == DType::kBF16 ? bf16_to_f32(f32_to_bf16(values[i])) : values[i];
          EXPECT_EQ(data[i], encode<E4M3>(x * scale)) << values[i] << " * " << scale;
        }
      }
    }
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

#include "ops/quantize.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "reference/compare.h"
#include "support/quantize.h"

// Every format in every orientation equals its definition bit for bit: quantized data, scales and the padding of
// scales.
namespace fp8lab {
namespace {

using reference::Flaw;
using support::bytes_of;
using support::matrix_of;
using support::NamedFormat;
using support::Placement;

const Shape kCastShapes[] = {{1, 1},  {1, 31}, {33, 32},   {31, 33},  {127, 129},
                             {0, 32}, {32, 0}, {128, 256}, {5, 4096}, {2, 3, 4, 8}};

::testing::AssertionResult orientation_equals(Device& device, const QuantizedOrientation& orientation,
                                              const reference::Quantized& expected) {
  auto data = reference::bitwise_equal(bytes_of(device, orientation.data), expected.data);
  if (!data) return data << " (quantized data)";
  auto scales = reference::bitwise_equal(bytes_of(device, orientation.scale_inv), expected.scale_bytes);
  if (!scales) return scales << " (bytes of scales)";
  return ::testing::AssertionSuccess();
}

class EveryFormat : public ::testing::TestWithParam<std::tuple<NamedFormat, DType>> {
 protected:
  const QuantFormat& format() const { return std::get<0>(GetParam()).format; }
  DType dtype() const { return std::get<1>(GetParam()); }
  Tensor input(const Shape& shape, Placement placement) {
    return support::place(*device_, shape, dtype(), support::varied_values(shape.numel(), 17), placement);
  }

  std::unique_ptr<Device> device_ = support::open_poisoned_device();
};

TEST_P(EveryFormat, QuantizesToItsDefinition) {
  for (const Shape& shape : kCastShapes)
    for (const Placement placement : support::kPlacements) {
      SCOPED_TRACE(to_string(shape) + " " + support::name_of(placement));
      const Tensor x = input(shape, placement);
      const reference::Matrix matrix = matrix_of(*device_, x);
      const float scale = support::expected_scale(matrix, format());
      const reference::Quantized rowwise = reference::quantize(matrix, format(), scale);
      const reference::Quantized columnwise = reference::quantize_columnwise(matrix, format(), scale);

      const QuantizedTensor both = support::quantized(*device_, x, format());
      ASSERT_TRUE(orientation_equals(*device_, both.rowwise(), rowwise));
      ASSERT_TRUE(orientation_equals(*device_, both.columnwise(), columnwise));
      const QuantizedTensor rows = support::quantized(*device_, x, format(), {.orientations = {true, false}});
      ASSERT_FALSE(rows.columnwise());
      ASSERT_TRUE(orientation_equals(*device_, rows.rowwise(), rowwise));
      const QuantizedTensor columns = support::quantized(*device_, x, format(), {.orientations = {false, true}});
      ASSERT_FALSE(columns.rowwise());
      ASSERT_TRUE(orientation_equals(*device_, columns.columnwise(), columnwise));
      ASSERT_EQ(format().per_tensor(),
                both.rowwise().scale_inv.buffer().same_block(both.columnwise().scale_inv.buffer()));
    }
}

// Amaxes at which a scale overflows, is subnormal or steps to the next power of two, ties, and values that are not
// finite: the first value of a row, and its other values, which share its scale in the first block only.
TEST_P(EveryFormat, QuantizesTheEdgesOfTheNumberRangeToItsDefinition) {
  constexpr float largest = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::pair<float, float>> rows = {{0.0f, 0.0f},
                                               {-0.0f, -0.0f},
                                               {-448.0f, -7.0f},
                                               {0x1p-149f, 0.0f},
                                               {0x1p-133f, -0x1p-133f},
                                               {3.0e-36f, 2.64e-36f},
                                               {5.26e-36f, 4e-36f},
                                               {0x1.cp-119f, 0.0f},
                                               {largest, 1.0f},
                                               {0x1.fp127f, 0x1.dfffp127f},
                                               {480.0f, 1.0f},
                                               {0x1.fffffep8f, 0.0f},
                                               {3.5f, 0x1.c00002p1f},
                                               {1e6f, 1.0f},
                                               {infinity, 2.0f},
                                               {-infinity, 2.0f},
                                               {nan, 2.0f},
                                               {-nan, 2.0f},
                                               {2.0f, infinity},
                                               {2.0f, nan}};
  for (const int k : {-20, -1, 0, 1, 30})
    for (const float to : {0.0f, 1e30f})
      rows.emplace_back(std::nextafterf(std::ldexp(448.0f, k), to), std::ldexp(448.0f, k));
  for (const auto& [first, rest] : rows) {
    SCOPED_TRACE(fmt::format("{} {}", first, rest));
    std::vector<float> values(160, rest);
    values[0] = first;
    const Tensor x = support::make_tensor(*device_, {1, 160}, dtype(), values);
    const reference::Matrix matrix = matrix_of(*device_, x);
    const float scale = support::expected_scale(matrix, format());
    const reference::Quantized expected = reference::quantize(matrix, format(), scale);
    const QuantizedTensor both = support::quantized(*device_, x, format());
    ASSERT_TRUE(orientation_equals(*device_, both.rowwise(), expected));
    ASSERT_TRUE(
        orientation_equals(*device_, both.columnwise(), reference::quantize_columnwise(matrix, format(), scale)));
    const Tensor again = dequantize(*device_, both.rowwise_operand(), DType::kF32, support::anyone(*device_));
    ASSERT_TRUE(reference::all_close(support::read(*device_, again),
                                     reference::dequantize(expected, format(), 1, 160).values, {.atol = 0, .rtol = 0}));
  }
}

TEST_P(EveryFormat, DequantizesToItsDefinition) {
  for (const Shape& shape : kCastShapes) {
    SCOPED_TRACE(to_string(shape));
    const Tensor x = input(shape, Placement::kContiguous);
    const reference::Matrix matrix = matrix_of(*device_, x);
    const QuantizedTensor both = support::quantized(*device_, x, format());
    const auto check_orientation = [&](const OperandView& operand, const reference::Matrix& source) {
      const reference::Quantized expected =
          reference::quantize(source, format(), support::expected_scale(matrix, format()));
      const Tensor values = dequantize(*device_, operand, DType::kF32, support::anyone(*device_));
      return reference::bitwise_equal(support::read(*device_, values),
                                      reference::dequantize(expected, format(), source.rows, source.cols).values);
    };
    ASSERT_TRUE(check_orientation(both.rowwise_operand(), matrix));
    ASSERT_TRUE(check_orientation(both.columnwise_operand(false), matrix.transposed()));
    if (!format().columnwise_is_transpose()) continue;
    // A transposed view of the row-wise orientation serves as the column-wise one.
    const QuantizedTensor rows = support::quantized(*device_, x, format(), {.orientations = {true, false}});
    ASSERT_TRUE(check_orientation(rows.columnwise_operand(true), matrix.transposed()));
  }
}

TEST_P(EveryFormat, RecordsTheLargestMagnitude) {
  const bool history = format().amax_source == AmaxSource::kHistory;
  const Tensor x = input({33, 65}, Placement::kInsideWider);
  const auto expected = static_cast<float>(reference::amax(matrix_of(*device_, x)));
  const Tensor amax = support::scalar(*device_, 0.0f);
  const Quantizer inputs{.format = format(),
                         .orientations = {false, true},
                         .scale = history ? support::scalar(*device_, 2.0f) : Tensor{},
                         .amax = amax,
                         .holder = support::anyone(*device_)};
  quantize(*device_, x, inputs);
  EXPECT_EQ(device_->read(amax)[0], expected);
  device_->write(amax, std::vector<float>{2 * expected});
  quantize(*device_, x, inputs);
  EXPECT_EQ(device_->read(amax)[0], 2 * expected) << "a larger amax of before must stay";
}

std::string param_name(const ::testing::TestParamInfo<EveryFormat::ParamType>& info) {
  return std::get<0>(info.param).name + "_" + std::string(name(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(Quantize, EveryFormat,
                         ::testing::Combine(::testing::ValuesIn(support::all_formats()),
                                            ::testing::Values(DType::kF32, DType::kBF16, DType::kF16)),
                         param_name);

// Each mistake must change the quantized data or scales of the data used above, which are equal without it. The other
// order of the scaling rule changes only ties, some 200 in a million, so that mistake gets a million values.
TEST(QuantizeReference, DiffersUnderEveryMistake) {
  const auto device = support::open_poisoned_device();
  const auto differs = [&](const std::string& format_name, Flaw flaw) {
    const QuantFormat format = support::format_named(format_name);
    const Shape shape = flaw == Flaw::kDividesByInverse ? Shape{1000, 1000} : Shape{127, 129};
    const Tensor x = support::make_tensor(*device, shape, DType::kBF16, support::varied_values(shape.numel(), 17));
    const reference::Matrix matrix = matrix_of(*device, x);
    const QuantizedTensor actual = support::quantized(*device, x, format);
    const float scale = support::expected_scale(matrix, format);
    EXPECT_TRUE(orientation_equals(*device, actual.rowwise(), reference::quantize(matrix, format, scale)))
        << format_name;
    return !orientation_equals(*device, actual.rowwise(), reference::quantize(matrix, format, scale, flaw));
  };
  for (const char* format : {"current_e4m3", "block_1x128_f32", "block_1x128_e5m2", "block_128x128_f32"}) {
    EXPECT_TRUE(differs(format, Flaw::kDividesByInverse)) << format;
    EXPECT_TRUE(differs(format, Flaw::kScaleThroughBf16)) << format;
  }
  for (const char* format : {"block_1x128_pow2", "block_128x128_pow2", "mxfp8_rceil", "mxfp8_floor_e5m2"}) {
    EXPECT_TRUE(differs(format, Flaw::kSignedAmax)) << format;
    EXPECT_TRUE(differs(format, Flaw::kNeighboursBlock)) << format;
  }
  for (const char* format : {"mxfp8_rceil", "mxfp8_floor", "mxfp8_rceil_e5m2", "mxfp8_floor_e5m2"})
    EXPECT_TRUE(differs(format, Flaw::kFloorForCeiling)) << format;
  for (const NamedFormat& row : support::all_formats()) EXPECT_TRUE(differs(row.name, Flaw::kTruncates)) << row.name;
}

TEST(QuantizeTogether, UsesTheScaleOfTheLargestAmax) {
  const auto device = support::open_poisoned_device();
  const QuantFormat format = support::format_named("current_e4m3");
  const Tensor packed = support::make_tensor(*device, {40, 96}, DType::kBF16, support::varied_values(40 * 96, 3));
  const std::vector<Tensor> parts = {packed.columns(0, 48), packed.columns(48, 16), packed.columns(64, 32)};
  const std::vector<QuantizedTensor> together = quantize_together(
      *device, parts, {.format = format, .orientations = {true, true}, .holder = support::anyone(*device)});
  ASSERT_EQ(together.size(), parts.size());
  const float scale = support::expected_scale(matrix_of(*device, packed), format);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const reference::Matrix part = matrix_of(*device, parts[i]);
    EXPECT_TRUE(orientation_equals(*device, together[i].rowwise(), reference::quantize(part, format, scale)));
    EXPECT_TRUE(
        orientation_equals(*device, together[i].columnwise(), reference::quantize_columnwise(part, format, scale)));
    EXPECT_TRUE(together[i].columnwise().scale_inv.buffer().same_block(together[0].rowwise().scale_inv.buffer()));
  }
}

TEST(QuantizeTogether, FindsTheLargestAmaxInAnyTensor) {
  const auto device = support::open_poisoned_device();
  const QuantFormat format = support::format_named("current_e4m3");
  for (std::size_t largest = 0; largest < 3; ++largest) {
    std::vector<Tensor> parts;
    for (std::size_t i = 0; i < 3; ++i) {
      std::vector<float> values(6 * 16, 0.5f);
      if (i == largest) values[37] = -7.0f;
      parts.push_back(support::make_tensor(*device, {6, 16}, DType::kBF16, values));
    }
    for (const QuantizedTensor& part : quantize_together(
             *device, parts, {.format = format, .orientations = {true, false}, .holder = support::anyone(*device)}))
      EXPECT_EQ(support::read(*device, part.rowwise().scale_inv).front(), double{7.0f / 448.0f}) << largest;
  }
}

// A float scale whose quotient is above every float becomes the largest number of the type that is cast.
TEST(QuantizeBlocks, WithAnOverflowingScaleUseTheLargestNumber) {
  const auto device = support::open_poisoned_device();
  for (const DType dtype : {DType::kBF16, DType::kF32})
    for (const char* kind : {"block_1x128_f32", "block_128x128_f32", "block_1x128_pow2", "block_128x128_pow2"}) {
      SCOPED_TRACE(fmt::format("{} {}", name(dtype), kind));
      const QuantFormat format = support::format_named(kind);
      const Tensor x = support::make_tensor(*device, {160, 256}, dtype, std::vector<float>(160 * 256, 0x1p-130f));
      const QuantizedTensor made = support::quantized(*device, x, format);
      const reference::Matrix matrix = matrix_of(*device, x);
      EXPECT_TRUE(orientation_equals(*device, made.rowwise(), reference::quantize(matrix, format)));
      EXPECT_TRUE(orientation_equals(*device, made.columnwise(), reference::quantize_columnwise(matrix, format)));
      const float of_type = dtype == DType::kBF16 ? 0x1.fep127f : 0x1.fffffep127f;
      const float largest = format.scale == ScaleKind::kF32PowerOfTwo ? 0x1p127f : of_type;
      EXPECT_EQ(device->read(made.rowwise().scale_inv).front(), 1.0f / largest);
    }
}

// Kernels support any strides, more than tensors can have.
TEST(QuantizeKernel, SupportsAnyStrides) {
  const auto device = support::open_poisoned_device();
  constexpr std::int64_t kRows = 37, kCols = 70;
  const std::vector<float> values = support::varied_values(20000, 5);
  const Tensor memory = support::make_tensor(*device, {20000}, DType::kBF16, values);
  struct Strides {
    std::int64_t offset, row, col;
  };
  for (const Strides strides :
       {Strides{0, 3 * 71, 3}, {0, 2, 80}, {12000, -200, -2}, {5, 0, 1}, {5, 1, 0}, {5, 0, 0}}) {
    SCOPED_TRACE(std::to_string(strides.row) + " " + std::to_string(strides.col));
    MatrixView in = memory.view();
    in.data += 2 * strides.offset;
    in.rows = kRows;
    in.cols = kCols;
    in.row_stride = strides.row;
    in.col_stride = strides.col;
    reference::Matrix matrix{kRows, kCols, {}};
    const std::vector<double> stored = support::read(*device, memory);
    for (std::int64_t i = 0; i < kRows; ++i)
      for (std::int64_t j = 0; j < kCols; ++j)
        matrix.values.push_back(stored[static_cast<std::size_t>(strides.offset + i * strides.row + j * strides.col)]);
    for (const NamedFormat& row : support::all_formats()) {
      SCOPED_TRACE(row.name);
      QuantizedTensor shell({kRows, kCols}, row.format);
      const Tensor inverse = device->allocate(scale_layout(row.format, kRows, kCols).spec, support::anyone(*device));
      // Quantized data with a gap after each element.
      const Tensor data = device->allocate({Shape{kRows, 2 * kCols}, row.format.dtype}, support::anyone(*device));
      MatrixView gaps = data.view();
      gaps.cols = kCols;
      gaps.col_stride = 2;
      const float scale = support::expected_scale(matrix, row.format);
      const Tensor scale_tensor = support::scalar(*device, scale);
      QuantizeArgs args;
      args.in = in;
      args.rowwise = {gaps, scale_view(inverse, row.format, kRows, kCols)};
      args.format = row.format;
      args.scale = scale_tensor.data<float>();
      device->launch(&KernelTable::quantize, args);
      const reference::Quantized expected = reference::quantize(matrix, row.format, scale);
      std::vector<std::uint8_t> gathered;
      const std::vector<std::uint8_t> with_gaps = bytes_of(*device, data);
      for (std::size_t i = 0; i < with_gaps.size(); i += 2) {
        gathered.push_back(with_gaps[i]);
        ASSERT_EQ(with_gaps[i + 1], 0xFF) << "a gap was written to";
      }
      ASSERT_TRUE(reference::bitwise_equal(gathered, expected.data));
      ASSERT_TRUE(reference::bitwise_equal(bytes_of(*device, inverse), expected.scale_bytes));
    }
  }
}

}  // namespace
}  // namespace fp8lab

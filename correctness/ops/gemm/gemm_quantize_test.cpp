#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/float16.h"
#include "core/float8.h"
#include "ops/gemm.h"
#include "ops/gemm/gemm_reference.h"
#include "reference/test_data.h"
#include "support/dense_test.h"

// Products that are quantized without being stored. A GPU's library makes some of them by itself, quantized data from
// quantized data; others are multiplied and cast one after the other. Both must equal the same reference: the product
// in double precision, cast by a table lookup.
namespace fp8lab {
namespace {

using support::make_tensor;
using namespace gemm_test;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A quantizer of a full tensor under `scale`, whose amax already has the value `amax`.
Quantizer quantizer(Device& device, DType dtype, float scale, float amax = 0.0f,
                    const Orientations& orientations = {}) {
  return {.format = {.dtype = dtype, .amax_source = AmaxSource::kHistory},
          .orientations = orientations,
          .scale = make_tensor(device, {1}, DType::kF32, {scale}),
          .amax = make_tensor(device, {1}, DType::kF32, {amax}),
          .holder = support::anyone(device)};
}

std::vector<std::uint8_t> data_of(Device& device, const Tensor& tensor) {
  std::vector<std::uint8_t> data;
  for (const std::byte code : device.read_bytes(tensor)) data.push_back(static_cast<std::uint8_t>(code));
  return data;
}

std::vector<std::uint8_t> transposed_data(const std::vector<std::uint8_t>& data, std::int64_t rows, std::int64_t cols) {
  std::vector<std::uint8_t> result(data.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j)
      result[static_cast<std::size_t>(j * rows + i)] = data[static_cast<std::size_t>(i * cols + j)];
  return result;
}

/// True if each element is the quantized data of some value within `expected`, times `scale`; NaN never is.
::testing::AssertionResult are_data_of(const std::vector<std::uint8_t>& data, const Expected& expected, double scale,
                                       DType dtype) {
  const reference::SmallFloat& format = decoder(dtype);
  if (data.size() != expected.value.size()) return ::testing::AssertionFailure() << data.size() << " quantized data";
  for (std::size_t i = 0; i < data.size(); ++i) {
    const double value = expected.value[i] * scale;
    const double error = 1.01 * (expected.error[i] * scale + 2.0 * kUnit * std::fabs(value));
    const double code = format.decode(data[i]);
    const double lowest = format.decode(format.encode(value - error)),
                 highest = format.decode(format.encode(value + error));
    if (lowest <= code && code <= highest) continue;
    std::ostringstream text;
    text << "[" << i << "] is " << code << ", of " << value << " +- " << error;
    return ::testing::AssertionFailure() << text.str();
  }
  return ::testing::AssertionSuccess();
}

double largest_of(const std::vector<double>& values) {
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

/// Mutations that are_data_of() must refuse: quantized data truncated instead of rounded, of values a tenth too large,
/// and of the neighbouring element.
void expect_mutations_refused(const Expected& expected, double scale, DType dtype) {
  const reference::SmallFloat& format = decoder(dtype);
  const std::size_t size = expected.value.size();
  std::vector<std::uint8_t> cut(size), large(size), next(size);
  for (std::size_t i = 0; i < size; ++i) {
    const double value = expected.value[i] * scale;
    const auto encode = [&](double x) { return static_cast<std::uint8_t>(format.encode(x)); };
    cut[i] = encode(value);
    if (std::fabs(format.decode(cut[i])) > std::fabs(value)) --cut[i];
    large[i] = encode(1.1 * value);
    next[i] = encode(expected.value[(i + 1) % size] * scale);
  }
  EXPECT_FALSE(are_data_of(cut, expected, scale, dtype));
  EXPECT_FALSE(are_data_of(large, expected, scale, dtype));
  EXPECT_FALSE(are_data_of(next, expected, scale, dtype));
}

struct GemmQuantizeCase {
  Kind a;
  Kind b;
  DType dtype = DType::kE4M3;
};

std::string gemm_quantize_name(const ::testing::TestParamInfo<GemmQuantizeCase>& instance) {
  const GemmQuantizeCase& c = instance.param;
  return std::string(name_of(c.a)) + "_" + name_of(c.b) + "_to_" + std::string(name(c.dtype));
}

class GemmQuantize : public ::testing::TestWithParam<GemmQuantizeCase> {
 protected:
  Operand operand(bool first, std::int64_t rows, std::int64_t cols) {
    const Kind kind = first ? GetParam().a : GetParam().b;
    return make_operand(*device_, {.kind = kind, .rows = rows, .cols = cols, .seed = first ? 1u : 2u});
  }
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
};

// A GPU's library supports the third and the last shape, and not the others.
constexpr std::array<std::array<std::int64_t, 3>, 5> kShapes = {
    {{1, 1, 1}, {33, 31, 32}, {48, 64, 128}, {5, 130, 129}, {96, 80, 272}}};

TEST_P(GemmQuantize, DataAndAmaxEqualTheProductInDouble) {
  constexpr Orientations kOrientations[] = {{true, false}, {true, true}, {false, true}, {true, true}};
  const DType dtype = GetParam().dtype;
  for (const auto& [m, n, k] : kShapes) {
    const Operand a = operand(true, m, k), b = operand(false, n, k);
    const MatrixUnit* const unit = summed_by(*device_, a, b);
    int round = 0;
    for (const std::optional<DType> of_bias : {std::optional<DType>(), std::optional(DType::kBF16),
                                               std::optional(DType::kF16), std::optional(DType::kF32)}) {
      SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k << (of_bias ? " plus " : "")
                                        << (of_bias ? name(*of_bias) : ""));
      const Tensor bias = make_tensor(*device_, {n}, of_bias.value_or(DType::kF32), reference::gaussian_values(n, 3));
      const Expected expected = product(a, b, of_bias ? support::read(*device_, bias) : Values{}, DType::kF32, unit);
      const double largest = largest_of(expected.value);
      const float scale = static_cast<float>(0.9 * decoder(dtype).max() / largest);
      const Quantizer cast = quantizer(*device_, dtype, scale, 0.0f, kOrientations[round++]);
      QuantizedTensor out =
          gemm_quantize(*device_, {.a = a.view, .b = b.view, .bias = of_bias ? &bias : nullptr}, cast);

      EXPECT_EQ(out.shape(), (Shape{m, n}));
      std::vector<std::uint8_t> data;
      if (cast.orientations.rowwise) data = data_of(*device_, out.rowwise().data);
      if (cast.orientations.columnwise) {
        const std::vector<std::uint8_t> transposed = transposed_data(data_of(*device_, out.columnwise().data), n, m);
        if (cast.orientations.rowwise) {
          EXPECT_EQ(transposed, data);
        }
        data = transposed;
        EXPECT_EQ(device_->read(out.columnwise().scale_inv), std::vector<float>{1.0f / scale});
      } else {
        EXPECT_EQ(device_->read(out.rowwise().scale_inv), std::vector<float>{1.0f / scale});
      }
      EXPECT_TRUE(are_data_of(data, expected, scale, dtype));
      EXPECT_NEAR(device_->read(cast.amax)[0], largest, 1.01 * largest_of(expected.error));
      if (unit == nullptr && m * n > 8) expect_mutations_refused(expected, scale, dtype);
    }
  }
}

// Products that are cast from memory: products cast in blocks, and products of operands that are not quantized, cast
// under one scale.
TEST_P(GemmQuantize, EqualsTheCastOfTheFp32Product) {
  const bool per_tensor = format_of(GetParam().a).has_value() && format_of(GetParam().a)->per_tensor();
  for (const auto& [m, n, k] : kShapes)
    for (const char* recipe : {"delayed", "block", "mxfp8"}) {
      if (per_tensor && recipe == std::string("delayed")) continue;
      SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k << " to " << recipe);
      Quantizer cast{.format = make_recipe(recipe).activation, .holder = support::anyone(*device_)};
      if (cast.format.per_tensor()) cast = quantizer(*device_, GetParam().dtype, 3.7f);
      const Operand a = operand(true, m, k), b = operand(false, n, k);
      const GemmInputs of{.a = a.view, .b = b.view, .out_dtype = DType::kF32};
      QuantizedTensor expected = quantize(*device_, gemm(*device_, of), cast), out = gemm_quantize(*device_, of, cast);
      EXPECT_EQ(device_->read_bytes(out.rowwise().data), device_->read_bytes(expected.rowwise().data));
      EXPECT_EQ(device_->read_bytes(out.rowwise().scale_inv), device_->read_bytes(expected.rowwise().scale_inv));
    }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GemmQuantize,
                         ::testing::Values(GemmQuantizeCase{Kind::kF32, Kind::kF32},
                                           GemmQuantizeCase{Kind::kBF16, Kind::kBF16},
                                           GemmQuantizeCase{Kind::kF16, Kind::kF16, DType::kE5M2},
                                           GemmQuantizeCase{Kind::kPerTensor, Kind::kPerTensor},
                                           GemmQuantizeCase{Kind::kPerTensor, Kind::kPerTensor, DType::kE5M2},
                                           GemmQuantizeCase{Kind::kE5M2PerTensor, Kind::kPerTensor},
                                           GemmQuantizeCase{Kind::kE5M2PerTensor, Kind::kPerTensor, DType::kE5M2},
                                           GemmQuantizeCase{Kind::kPerTensor, Kind::kE5M2PerTensor},
                                           GemmQuantizeCase{Kind::kPerTensor, Kind::kE5M2PerTensor, DType::kE5M2},
                                           GemmQuantizeCase{Kind::kRowBlocks, Kind::kSquareBlocks},
                                           GemmQuantizeCase{Kind::kRowBlocks, Kind::kRowBlocks, DType::kE5M2},
                                           GemmQuantizeCase{Kind::kMxfp8, Kind::kMxfp8},
                                           GemmQuantizeCase{Kind::kMxfp8, Kind::kMxfp8, DType::kE5M2}),
                         gemm_quantize_name);

/// Products of quantized data that the test writes down value by value.
class GemmQuantizeValues : public support::DenseTest {
 protected:
  /// `values`, which `dtype` represents exactly, as quantized data under an inverse scale of a quarter.
  Operand quantized_operand(DType dtype, std::int64_t rows, std::int64_t cols, const std::vector<double>& values) {
    Operand made{.view = {}, .values = {}, .rows = rows, .cols = cols, .plain = {}, .quantized = {}};
    made.quantized = QuantizedTensor(Shape{rows, cols}, {.dtype = dtype});
    QuantizedOrientation& orientation = made.quantized.rowwise();
    orientation.data = empty({rows, cols}, dtype);
    orientation.scale_inv = make_tensor(*device_, {1}, DType::kF32, {0.25f});
    std::vector<std::byte> data;
    for (const double value : values) {
      const bool infinite = std::isinf(value) && dtype == DType::kE5M2;
      data.push_back(static_cast<std::byte>(infinite ? (value < 0.0 ? 0xFCu : 0x7Cu) : decoder(dtype).encode(value)));
      made.values.push_back(0.25 * value);
    }
    device_->write_bytes(orientation.data, data);
    made.view = made.quantized.rowwise_operand();
    return made;
  }
  /// Integers from -8 to 8.
  static std::vector<double> integers(std::int64_t count, std::uint64_t seed) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<double>(static_cast<int>(reference::scramble(seed ^ (i << 20)) % 17) - 8);
    return values;
  }
  struct Made {
    std::vector<std::uint8_t> data;
    float amax = 0.0f;
  };
  Made make(const Operand& a, const Operand& b, const Quantizer& cast, const Tensor* bias = nullptr) {
    QuantizedTensor out = gemm_quantize(*device_, {.a = a.view, .b = b.view, .bias = bias}, cast);
    return {data_of(*device_, out.rowwise().data), device_->read(cast.amax)[0]};
  }
};

// Sums of integers are exact in any order, so quantized data and amax are known to the bit; a sum rounded to BF16 in
// between would differ.
TEST_F(GemmQuantizeValues, SumIsNotRoundedBeforeTheCast) {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{64, 48, 512}, {33, 31, 500}})
    for (const DType of_a : {DType::kE4M3, DType::kE5M2})
      for (const DType dtype : {DType::kE4M3, DType::kE5M2})
        for (const bool with_bias : {false, true}) {
          const Operand a = quantized_operand(of_a, m, k, integers(m * k, 1)),
                        b = quantized_operand(DType::kE4M3, n, k, integers(n * k, 2));
          std::vector<float> biases(static_cast<std::size_t>(n));
          for (std::size_t j = 0; j < biases.size(); ++j) biases[j] = 0.0625f * static_cast<float>(j);
          const Tensor bias = make_tensor(*device_, {n}, DType::kBF16, biases);
          const double scale = dtype == DType::kE4M3 ? 2.0 : 128.0;
          const Quantizer cast = quantizer(*device_, dtype, static_cast<float>(scale));
          const Made made = make(a, b, cast, with_bias ? &bias : nullptr);

          const Expected exact = product(a, b, with_bias ? support::read(*device_, bias) : Values{}, DType::kF32);
          const reference::SmallFloat& format = decoder(dtype);
          std::vector<std::uint8_t> data, through_bf16;
          for (const double value : exact.value) {
            data.push_back(static_cast<std::uint8_t>(format.encode(scale * value)));
            const double rounded = bf16_to_f32(f32_to_bf16(static_cast<float>(value)));
            through_bf16.push_back(static_cast<std::uint8_t>(format.encode(scale * rounded)));
          }
          SCOPED_TRACE(::testing::Message() << name(of_a) << " to " << name(dtype) << ", " << m << " x " << n);
          EXPECT_EQ(made.data, data);
          EXPECT_EQ(made.amax, largest_of(exact.value));
          EXPECT_NE(data, through_bf16);
        }
}

TEST_F(GemmQuantizeValues, SaturatesAndMeasuresTheUnsaturatedValues) {
  const Operand a = quantized_operand(DType::kE4M3, 32, 64, integers(32 * 64, 1)),
                b = quantized_operand(DType::kE4M3, 16, 64, integers(16 * 64, 2));
  const Expected exact = product(a, b, {}, DType::kF32);
  const Made made = make(a, b, quantizer(*device_, DType::kE4M3, 1e6f));
  EXPECT_EQ(made.amax, largest_of(exact.value));
  for (std::size_t i = 0; i < made.data.size(); ++i)
    EXPECT_EQ(made.data[i], exact.value[i] == 0.0 ? 0x00 : exact.value[i] > 0.0 ? 0x7E : 0xFE) << i;
}

TEST_F(GemmQuantizeValues, RaisesTheAmaxFromBefore) {
  const Operand a = quantized_operand(DType::kE4M3, 32, 64, integers(32 * 64, 1)),
                b = quantized_operand(DType::kE4M3, 16, 64, integers(16 * 64, 2));
  const float own = static_cast<float>(largest_of(product(a, b, {}, DType::kF32).value));
  EXPECT_EQ(make(a, b, quantizer(*device_, DType::kE4M3, 1.0f, 0.5f * own)).amax, own);
  EXPECT_EQ(make(a, b, quantizer(*device_, DType::kE4M3, 1.0f, 2.0f * own)).amax, 2.0f * own);
  EXPECT_EQ(make(a, b, quantizer(*device_, DType::kE4M3, 1.0f, kInfinity)).amax, kInfinity);
  EXPECT_TRUE(std::isnan(make(a, b, quantizer(*device_, DType::kE4M3, 1.0f, kNan)).amax));
  // The amax is optional.
  Quantizer unmeasured = quantizer(*device_, DType::kE4M3, 1.0f);
  unmeasured.amax = {};
  QuantizedTensor out = gemm_quantize(*device_, {.a = a.view, .b = b.view}, unmeasured);
  EXPECT_EQ(data_of(*device_, out.rowwise().data), make(a, b, quantizer(*device_, DType::kE4M3, 1.0f)).data);
}

TEST_F(GemmQuantizeValues, NanBecomesNanDataAndTheAmax) {
  constexpr std::int64_t kRows = 32, kCols = 16, kDepth = 64;
  for (const DType of_a : {DType::kE4M3, DType::kE5M2})
    for (const DType dtype : {DType::kE4M3, DType::kE5M2})
      for (const Orientations orientations : {Orientations{true, false}, {true, true}}) {
        std::vector<double> values = integers(kRows * kDepth, 1);
        values[7 * kDepth + 3] = kNan;
        const Operand a = quantized_operand(of_a, kRows, kDepth, values),
                      b = quantized_operand(DType::kE4M3, kCols, kDepth, integers(kCols * kDepth, 2));
        const Made made = make(a, b, quantizer(*device_, dtype, 1.0f, 0.25f, orientations));
        EXPECT_TRUE(std::isnan(made.amax));
        for (std::int64_t i = 0; i < kRows; ++i)
          for (std::int64_t j = 0; j < kCols; ++j)
            EXPECT_EQ(made.data[static_cast<std::size_t>(i * kCols + j)] == kFloat8Nan, i == 7) << i << ", " << j;
      }
}

TEST_F(GemmQuantizeValues, InfinitySaturatesAndBecomesTheAmax) {
  constexpr std::int64_t kRows = 32, kCols = 16,
                         kDepth = 64;  // less than a tile of any GPU; the rest of the tile must not count
  for (const DType dtype : {DType::kE4M3, DType::kE5M2}) {
    std::vector<double> values = integers(kRows * kDepth, 1), others = integers(kCols * kDepth, 2);
    values[7 * kDepth + 3] = kInfinity;
    for (std::int64_t j = 0; j < kCols; ++j) others[static_cast<std::size_t>(j * kDepth + 3)] = j % 2 == 0 ? 1.0 : -1.0;
    const Operand a = quantized_operand(DType::kE5M2, kRows, kDepth, values),
                  b = quantized_operand(DType::kE4M3, kCols, kDepth, others);
    const Made made = make(a, b, quantizer(*device_, dtype, 1.0f));
    EXPECT_EQ(made.amax, kInfinity);
    const auto largest = static_cast<std::uint8_t>(decoder(dtype).max_code());
    for (std::int64_t j = 0; j < kCols; ++j)
      EXPECT_EQ(made.data[static_cast<std::size_t>(7 * kCols + j)], j % 2 == 0 ? largest : largest | 0x80) << j;
  }
}

TEST_F(GemmQuantizeValues, NanAndInfinityOfABiasReachDataAndAmax) {
  constexpr std::int64_t kRows = 32, kCols = 16, kDepth = 64;
  const Operand a = quantized_operand(DType::kE4M3, kRows, kDepth, integers(kRows * kDepth, 1));
  const Operand b = quantized_operand(DType::kE4M3, kCols, kDepth, integers(kCols * kDepth, 2));
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    std::vector<float> values(kCols, 1.0f);
    values[5] = -kInfinity;
    const Tensor infinite = make_tensor(*device_, {kCols}, dtype, values);
    Made made = make(a, b, quantizer(*device_, DType::kE4M3, 1.0f), &infinite);
    EXPECT_EQ(made.amax, kInfinity);
    EXPECT_EQ(made.data[5], 0xFE);
    values[6] = kNan;
    const Tensor nan = make_tensor(*device_, {kCols}, dtype, values);
    made = make(a, b, quantizer(*device_, DType::kE4M3, 1.0f), &nan);
    EXPECT_TRUE(std::isnan(made.amax));
    for (std::int64_t i = 0; i < kRows; ++i) EXPECT_EQ(made.data[static_cast<std::size_t>(i * kCols + 6)], kFloat8Nan);
  }
}

// Elements beyond the result in a kernel's last tiles are not measured: neither a sum nor a bias without its sum.
TEST_F(GemmQuantizeValues, BiasIsMeasuredOnlyAsPartOfASum) {
  constexpr std::int64_t kRows = 24, kCols = 32, kDepth = 64;
  const Operand a = quantized_operand(DType::kE4M3, kRows, kDepth, std::vector<double>(kRows * kDepth, 2.0));
  const Operand b = quantized_operand(DType::kE4M3, kCols, kDepth, std::vector<double>(kCols * kDepth, 4.0));
  const Tensor bias = make_tensor(*device_, {kCols}, DType::kBF16, std::vector<float>(kCols, -32.0f));
  const Made made = make(a, b, quantizer(*device_, DType::kE4M3, 1.0f), &bias);
  EXPECT_EQ(made.amax, 0.0f);
  EXPECT_EQ(made.data, std::vector<std::uint8_t>(kRows * kCols, 0));
}

TEST_F(GemmQuantizeValues, EmptyDimensionsGiveEmptyOrBiasOnlyResults) {
  const auto make_empty = [&](std::int64_t m, std::int64_t n, std::int64_t k, const Tensor* bias,
                              const Quantizer& cast) {
    const Operand a = quantized_operand(DType::kE4M3, m, k, integers(m * k, 1)),
                  b = quantized_operand(DType::kE4M3, n, k, integers(n * k, 2));
    QuantizedTensor out = gemm_quantize(*device_, {.a = a.view, .b = b.view, .bias = bias}, cast);
    EXPECT_EQ(device_->read(out.rowwise().scale_inv), std::vector<float>{0.5f});
    return data_of(*device_, out.rowwise().data);
  };
  for (const auto& [m, n] : {std::array<std::int64_t, 2>{0, 16}, {16, 0}}) {
    const Quantizer cast = quantizer(*device_, DType::kE4M3, 2.0f, 0.25f);
    EXPECT_TRUE(make_empty(m, n, 32, nullptr, cast).empty());
    EXPECT_EQ(device_->read(cast.amax), std::vector<float>{0.25f});
  }
  const Quantizer cast = quantizer(*device_, DType::kE4M3, 2.0f, 0.25f);
  EXPECT_EQ(make_empty(2, 3, 0, nullptr, cast), std::vector<std::uint8_t>(6, 0));
  EXPECT_EQ(device_->read(cast.amax), std::vector<float>{0.25f});
  const Tensor bias = make_tensor(*device_, {2}, DType::kF32, {0.5f, -1.0f});
  EXPECT_EQ(make_empty(1, 2, 0, &bias, cast), (std::vector<std::uint8_t>{0x38, 0xC0}));
  EXPECT_EQ(device_->read(cast.amax), std::vector<float>{1.0f});
}

TEST_F(GemmQuantizeValues, RefusalsNameTheOperation) {
  const Tensor x = gaussian({4, 6}), y = gaussian({5, 7});
  const auto refusal = [&](const GemmInputs& inputs, const Quantizer& cast) {
    return support::error_of([&] { gemm_quantize(*device_, inputs, cast); });
  };
  const Quantizer cast = quantizer(*device_, DType::kE4M3, 1.0f);
  EXPECT_EQ(refusal({.a = x.operand(), .b = y.operand()}, cast),
            "gemm_quantize: a is f32 [4, 6], b is f32 [5, 7]; the product [m, n] is over the columns of a [m, k] and b "
            "[n, k]");
  EXPECT_EQ(refusal({.a = x.operand(), .b = x.operand(), .bias = &y}, cast),
            "gemm_quantize: bias is f32 [5, 7]; it must have 4 elements, one for each row of b");
  EXPECT_EQ(
      refusal({.a = x.operand(), .b = x.operand()}, {.format = make_recipe("current").activation, .holder = anyone()}),
      "gemm_quantize: the cast must be of a full tensor under a given scale, or row-wise in blocks of one row without "
      "an "
      "amax; store the result and quantize it");
}

}  // namespace
}  // namespace fp8lab

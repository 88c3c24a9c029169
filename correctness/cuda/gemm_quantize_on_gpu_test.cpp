#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/gemm/gemm_plan.h"
#include "cuda/large_products.h"
#include "reference/expected.h"
#include "reference/float8_sums.h"

// Products of which only the quantized data are kept, at the sizes of real models: bit for bit the cpu's if sums are
// exact, and within the bound of the GPU's sums at sampled entries everywhere. Casts by the library are counted, so
// that the test can tell which casts it made.
namespace fp8lab {
namespace {

using reference::kUnit;
using reference::MatrixUnit;
using namespace gemm_test;

struct Wanted {
  DType dtype = DType::kE4M3;
  float scale = 1.0f;
  float amax = 0.25f;  ///< the amax before the product
  bool measured = true;
  bool rowwise = true;
  bool columnwise = false;
  std::optional<DType> bias = std::nullopt;
  bool fast = false;
};

struct Made {
  std::vector<std::byte> rowwise;
  std::vector<std::byte> columnwise;
  std::vector<std::byte> scale_inv;
  float amax = 0.0f;
};

Made multiply_to_quantized(Device& device, const LargeOperand& a, const LargeOperand& b, const Wanted& wanted) {
  const LargeOperand::OnDevice on_a = a.put_on(device), on_b = b.put_on(device);
  const std::int64_t m = a.spec().rows, n = b.spec().rows;
  const HolderId holder = support::anyone(device);
  const Tensor scale = support::make_tensor(device, {1}, DType::kF32, {wanted.scale});
  const Tensor amax = support::make_tensor(device, {1}, DType::kF32, {wanted.amax});
  const Tensor scale_inv = device.allocate({Shape{1}, DType::kF32}, holder);
  const auto half = [&](std::int64_t rows, std::int64_t cols) {
    Tensor data = device.allocate({Shape{rows, cols}, wanted.dtype}, holder);
    OperandView view{data.view(), {.data = scale_inv.view().data, .dtype = DType::kF32, .storage_elems = 1}};
    return std::pair{std::move(data), view};
  };
  std::pair<Tensor, OperandView> rowwise, columnwise;
  if (wanted.rowwise) rowwise = half(m, n);
  if (wanted.columnwise) columnwise = half(n, m);
  Tensor bias;
  if (wanted.bias) bias = support::make_tensor(device, {1, n}, *wanted.bias, integers(n, 22));
  const MatrixView out{.data = nullptr, .dtype = DType::kF32, .rows = m, .cols = n, .row_stride = n, .col_stride = 1};
  device.launch(&KernelTable::gemm_quantize,
                GemmQuantizeArgs{.product = {.a = on_a.view,
                                             .b = on_b.view,
                                             .out = out,
                                             .bias = bias ? bias.view() : MatrixView{},
                                             .fast_accumulation = wanted.fast},
                                 .cast = {.in = out,
                                          .rowwise = rowwise.second,
                                          .columnwise = columnwise.second,
                                          .format = {.dtype = wanted.dtype, .amax_source = AmaxSource::kHistory},
                                          .scale = scale.data<const float>(),
                                          .amax = wanted.measured ? amax.data<float>() : nullptr}});
  device.synchronize();
  Made made;
  made.scale_inv = device.read_bytes(scale_inv);
  made.amax = device.read(amax)[0];
  if (wanted.rowwise) made.rowwise = device.read_bytes(rowwise.first);
  if (wanted.columnwise) made.columnwise = device.read_bytes(columnwise.first);
  return made;
}

class GemmQuantizeOnGpu : public ::testing::TestWithParam<Kinds> {
 protected:
  std::unique_ptr<Device> gpu_ = open("cuda");
};

TEST_P(GemmQuantizeOnGpu, SmallIntegersHaveTheBitsOfTheCpu) {
  constexpr std::int64_t kShapes[][3] = {{128, 256, 512}, {264, 144, 384}, {65, 63, 77},     {1, 16, 32},
                                         {130, 1, 128},   {72, 48, 200},   {512, 2048, 256}, {16, 16, 768}};
  const std::unique_ptr<Device> cpu = open("cpu");
  std::int64_t by_library = 0;
  for (const auto& [m, n, k] : kShapes) {
    const LargeOperand a = operand(GetParam(), true, m, k, Draw::kIntegers),
                       b = operand(GetParam(), false, n, k, Draw::kIntegers);
    for (const DType dtype : {DType::kE4M3, DType::kE5M2})
      for (const std::optional<DType> bias : {std::optional<DType>(), std::optional(DType::kF32),
                                              std::optional(DType::kBF16), std::optional(DType::kF16)})
        for (const auto& [rowwise, columnwise, measured] : {std::array{true, false, true},
                                                            {true, false, false},
                                                            {true, true, true},
                                                            {false, true, true},
                                                            {false, true, false}}) {
          // 0.37 makes no value exact, so that the product's one multiplication by the scale shows.
          const Wanted wanted{.dtype = dtype,
                              .scale = 0.37f,
                              .measured = measured,
                              .rowwise = rowwise,
                              .columnwise = columnwise,
                              .bias = bias};
          const Made made = multiply_to_quantized(*gpu_, a, b, wanted),
                     expected = multiply_to_quantized(*cpu, a, b, wanted);
          SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k << " -> " << name(dtype)
                                            << (bias ? std::string(" plus ") + std::string(name(*bias)) : ""));
          EXPECT_EQ(made.rowwise, expected.rowwise);
          EXPECT_EQ(made.columnwise, expected.columnwise);
          EXPECT_EQ(made.scale_inv, expected.scale_inv);
          EXPECT_EQ(made.amax, expected.amax);
          const bool makes =
              dtype == DType::kE4M3 || dtype_of(GetParam().a) == dtype || dtype_of(GetParam().b) == dtype;
          const bool adds = !bias || (bias != DType::kF32 && !measured);
          by_library += scaled_per_tensor(GetParam()) && n % 16 == 0 && k % 16 == 0 && adds && makes;
        }
  }
  EXPECT_EQ(cuda::gemm_routes(gpu_->context()).to_quantized, by_library);
  EXPECT_EQ(cuda::gemm_routes(gpu_->context()).declined, 0);
}

TEST_P(GemmQuantizeOnGpu, IsWithinItsBoundAtTheShapesOfLlama3Of8Billion) {
  constexpr std::int64_t kShapes[][3] = {{2048, 6144, 4096}, {2048, 4096, 14336}, {1040, 4112, 272}, {8, 16, 14336}};
  static constexpr MatrixUnit kUnits, kFast{.promoted_every = reference::kNeverPromoted};
  const reference::SmallFloat& format = decoder(DType::kE4M3);
  for (const auto& [m, n, k] : kShapes) {
    const LargeOperand a = operand(GetParam(), true, m, k, Draw::kNormal),
                       b = operand(GetParam(), false, n, k, Draw::kNormal);
    for (const bool fast : {false, true}) {
      if (fast && !scaled_per_tensor(GetParam())) continue;
      SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k << (fast ? ", fast" : ""));
      Wanted wanted{.amax = 0.0f, .fast = fast};
      // A first product gives the amax for the scale, as a step of delayed scaling does.
      wanted.scale = 448.0f / multiply_to_quantized(*gpu_, a, b, wanted).amax;
      const Made made = multiply_to_quantized(*gpu_, a, b, wanted);
      std::vector<double> products(static_cast<std::size_t>(k));
      int shortened_outside = 0;
      for (const std::int64_t i : sampled(m))
        for (const std::int64_t j : sampled(n)) {
          double sum = 0.0, magnitude = 0.0, shortened = 0.0;
          for (std::int64_t l = 0; l < k; ++l) {
            if (l == k - k / 8) shortened = sum;
            products[static_cast<std::size_t>(l)] = a.at(i, l) * b.at(j, l);
            sum += products[static_cast<std::size_t>(l)];
            magnitude += std::fabs(products[static_cast<std::size_t>(l)]);
          }
          double error = static_cast<double>(k + 4) * kUnit * magnitude + 2.0 * kUnit * std::fabs(sum);
          if (summed_in_eight_bits(GetParam())) error += reference::likely_error_on(fast ? kFast : kUnits, products);
          const double scale = wanted.scale;
          const double code =
              format.decode(static_cast<std::uint8_t>(made.rowwise[static_cast<std::size_t>(i * n + j)]));
          const double lowest = format.decode(format.encode((sum - error) * scale));
          const double highest = format.decode(format.encode((sum + error) * scale));
          EXPECT_TRUE(lowest <= code && code <= highest) << i << ", " << j << ": " << code << " of " << sum * scale;
          EXPECT_LE(std::fabs(sum), made.amax + error);
          shortened = format.decode(format.encode(shortened * scale));
          shortened_outside += shortened < lowest || shortened > highest;
        }
      // The bound refuses data of sums without the last eighth of their terms.
      if (m * n > 1000) {
        EXPECT_GT(shortened_outside, 20);
      }
    }
  }
}

TEST_P(GemmQuantizeOnGpu, HasTheSameBitsEveryTime) {
  const std::unique_ptr<Device> other = open("cuda");
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1024, 1040, 4096}, {64, 48, 14336}, {77, 130, 999}}) {
    const LargeOperand a = operand(GetParam(), true, m, k, Draw::kNormal),
                       b = operand(GetParam(), false, n, k, Draw::kNormal);
    const Wanted wanted{.columnwise = true, .bias = DType::kBF16, .fast = true};
    const Made first = multiply_to_quantized(*gpu_, a, b, wanted);
    for (Device* const device : {gpu_.get(), gpu_.get(), other.get()}) {
      const Made again = multiply_to_quantized(*device, a, b, wanted);
      EXPECT_EQ(again.rowwise, first.rowwise);
      EXPECT_EQ(again.columnwise, first.columnwise);
      EXPECT_EQ(again.amax, first.amax);
    }
  }
}

// One NaN among millions, at any place, appears in its row's quantized data and in the amax. The amax from before is
// never lowered.
TEST_P(GemmQuantizeOnGpu, NanReachesItsRowAndTheAmax) {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{2048, 4096, 512}, {256, 128, 8192}, {65, 33, 77}})
    for (const std::int64_t row : {std::int64_t{5}, m - 1})
      for (const bool columnwise : {false, true}) {
        LargeOperand a = operand(GetParam(), true, m, k, Draw::kNormal);
        const LargeOperand b = operand(GetParam(), false, n, k, Draw::kNormal);
        a.put_nan(row, k - 1);
        const Made made = multiply_to_quantized(*gpu_, a, b, {.scale = 0.01f, .columnwise = columnwise});
        EXPECT_TRUE(std::isnan(made.amax));
        std::int64_t elsewhere = 0;
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < n; ++j)
            elsewhere += (made.rowwise[static_cast<std::size_t>(i * n + j)] == std::byte{kFloat8Nan}) != (i == row);
        EXPECT_EQ(elsewhere, 0) << m << " x " << n << " x " << k;
      }
  const LargeOperand a = operand(GetParam(), true, 256, 512, Draw::kNormal),
                     b = operand(GetParam(), false, 128, 512, Draw::kNormal);
  EXPECT_TRUE(std::isnan(multiply_to_quantized(*gpu_, a, b, {.amax = std::numeric_limits<float>::quiet_NaN()}).amax));
  EXPECT_EQ(multiply_to_quantized(*gpu_, a, b, {.amax = 1e30f}).amax, 1e30f);
  const float own = multiply_to_quantized(*gpu_, a, b, {.amax = 0.0f}).amax;
  EXPECT_GT(own, 1.0f);
  EXPECT_EQ(multiply_to_quantized(*gpu_, a, b, {.amax = own / 2.0f}).amax, own);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, GemmQuantizeOnGpu,
    ::testing::Values(Kinds{Kind::kPerTensor, Kind::kPerTensor}, Kinds{Kind::kE5M2PerTensor, Kind::kPerTensor},
                      Kinds{Kind::kPerTensor, Kind::kE5M2PerTensor}, Kinds{Kind::kBF16, Kind::kBF16},
                      Kinds{Kind::kRowBlocks, Kind::kSquareBlocks}, Kinds{Kind::kMxfp8, Kind::kMxfp8}),
    kinds_name);

}  // namespace
}  // namespace fp8lab

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "backend/cuda/gemm/gemm_plan.h"
#include "cuda/large_products.h"
#include "reference/expected.h"
#include "reference/float8_sums.h"

// The GPU's products at the sizes of real models, compared with double precision at sampled entries, and bit for bit
// with the cpu's if sums are exact.
namespace fp8lab {
namespace {

using reference::Expected;
using reference::kUnit;
using reference::MatrixUnit;
using namespace gemm_test;

struct Options {
  DType out = DType::kBF16;
  std::optional<DType> bias = std::nullopt;
  bool accumulate = false;
  bool fast = false;
};

Tensor multiply(Device& device, const LargeOperand& a, const LargeOperand& b, const Options& options) {
  const LargeOperand::OnDevice on_a = a.put_on(device), on_b = b.put_on(device);
  const std::int64_t m = a.spec().rows, n = b.spec().rows;
  const Tensor out = device.allocate({Shape{m, n}, options.out}, support::anyone(device));
  if (options.accumulate) device.write(out, integers(m * n, 21));
  Tensor bias;
  if (options.bias) bias = support::make_tensor(device, {1, n}, *options.bias, integers(n, 22));
  device.launch(&KernelTable::gemm, GemmArgs{.a = on_a.view,
                                             .b = on_b.view,
                                             .out = out.view(),
                                             .bias = bias ? bias.view() : MatrixView{},
                                             .accumulate = options.accumulate,
                                             .fast_accumulation = options.fast});
  device.synchronize();
  return out;
}

constexpr auto kEveryKind = std::array{Kinds{Kind::kF32, Kind::kF32},
                                       Kinds{Kind::kF32, Kind::kF32, true, true},
                                       Kinds{Kind::kF16, Kind::kF16},
                                       Kinds{Kind::kBF16, Kind::kBF16},
                                       Kinds{Kind::kBF16, Kind::kBF16, false, true},
                                       Kinds{Kind::kBF16, Kind::kBF16, true, true},
                                       Kinds{Kind::kPerTensor, Kind::kPerTensor},
                                       Kinds{Kind::kE5M2PerTensor, Kind::kPerTensor},
                                       Kinds{Kind::kPerTensor, Kind::kE5M2PerTensor},
                                       Kinds{Kind::kRowBlocks, Kind::kSquareBlocks},
                                       Kinds{Kind::kSquareBlocks, Kind::kRowBlocks},
                                       Kinds{Kind::kRowBlocks, Kind::kRowBlocks},
                                       Kinds{Kind::kMxfp8, Kind::kMxfp8},
                                       Kinds{Kind::kMxfp8, Kind::kMxfp8, true, true}};

class GemmOnGpu : public ::testing::TestWithParam<Kinds> {
 protected:
  std::unique_ptr<Device> gpu_ = open("cuda");
};

struct Sampled {
  std::vector<double> made;
  Expected expected{};
  std::vector<double> shortened;  ///< the expected value without the last eighth of the terms
};

Sampled sample(Device& device, const LargeOperand& a, const LargeOperand& b, const Options& options,
               const MatrixUnit* unit) {
  const Tensor out = multiply(device, a, b, options);
  const std::int64_t k = a.spec().cols;
  Sampled result;
  std::vector<double> products(static_cast<std::size_t>(k));
  for (const std::int64_t i : sampled(a.spec().rows)) {
    const std::vector<float> row = device.read(out.row_range(i, 1));
    for (const std::int64_t j : sampled(b.spec().rows)) {
      double sum = 0.0, magnitude = 0.0, shortened = 0.0;
      for (std::int64_t l = 0; l < k; ++l) {
        if (l == k - k / 8) shortened = sum;
        const double product = a.at(i, l) * b.at(j, l);
        products[static_cast<std::size_t>(l)] = product;
        sum += product;
        magnitude += std::fabs(product);
      }
      result.made.push_back(row[static_cast<std::size_t>(j)]);
      result.expected.value.push_back(sum);
      result.shortened.push_back(shortened);
      result.expected.error.push_back(static_cast<double>(k + 4) * kUnit * magnitude +
                                      (unit ? reference::likely_error_on(*unit, products) : 0.0));
    }
  }
  result.expected = rounded_to(options.out, std::move(result.expected));
  return result;
}

TEST_P(GemmOnGpu, IsWithinItsBoundAtTheShapesOfLlama3Of8Billion) {
  constexpr std::int64_t kShapes[][3] = {
      {2048, 28672, 4096}, {2048, 4096, 14336}, {6144, 4096, 2048}, {1040, 4112, 272}, {8, 16, 14336}};
  static constexpr MatrixUnit kUnit13, kFast{.promoted_every = reference::kNeverPromoted};
  for (const auto& [m, n, k] : kShapes) {
    SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k);
    const LargeOperand a = operand(GetParam(), true, m, k, Draw::kNormal),
                       b = operand(GetParam(), false, n, k, Draw::kNormal);
    for (const bool fast : {false, true}) {
      if (fast && !scaled_per_tensor(GetParam())) continue;
      const MatrixUnit* const unit = summed_in_eight_bits(GetParam()) ? (fast ? &kFast : &kUnit13) : nullptr;
      const Sampled entries = sample(*gpu_, a, b, {.out = DType::kF32, .fast = fast}, unit);
      EXPECT_TRUE(all_within(entries.made, entries.expected));
      // The bound refuses the shortened sums; a few entries may lie inside it by chance.
      if (m * n > 1000) {
        EXPECT_FALSE(all_within(entries.shortened, entries.expected));
      }
    }
  }
  EXPECT_EQ(cuda::gemm_routes(gpu_->context()).general, 0);
}

// For every shape, type of result, bias and accumulation, products of integers whose sums are exact have the bits of
// the cpu kernel.
TEST_P(GemmOnGpu, SmallIntegersHaveTheBitsOfTheCpu) {
  constexpr std::int64_t kShapes[][3] = {{128, 256, 512}, {264, 144, 384}, {65, 63, 77},     {1, 16, 32},
                                         {130, 1, 128},   {72, 48, 200},   {512, 2048, 256}, {16, 16, 768}};
  const std::unique_ptr<Device> cpu = open("cpu");
  for (const auto& [m, n, k] : kShapes) {
    const LargeOperand a = operand(GetParam(), true, m, k, Draw::kIntegers),
                       b = operand(GetParam(), false, n, k, Draw::kIntegers);
    for (const DType out : {DType::kF32, DType::kBF16, DType::kF16})
      for (const std::optional<DType> bias :
           {std::optional<DType>(), std::optional(DType::kF32), std::optional(DType::kBF16)})
        for (const bool accumulate : {false, true}) {
          const Options options{.out = out, .bias = bias, .accumulate = accumulate};
          EXPECT_EQ(gpu_->read_bytes(multiply(*gpu_, a, b, options)), cpu->read_bytes(multiply(*cpu, a, b, options)))
              << m << " x " << n << " x " << k << " -> " << name(out) << (bias ? " plus bias" : "")
              << (accumulate ? " accumulated" : "");
        }
  }
  EXPECT_EQ(cuda::gemm_routes(gpu_->context()).declined, 0);
}

TEST_P(GemmOnGpu, HasTheSameBitsEveryTime) {
  const std::unique_ptr<Device> other = open("cuda");
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1024, 1040, 4096}, {64, 48, 14336}, {77, 130, 999}}) {
    const LargeOperand a = operand(GetParam(), true, m, k, Draw::kNormal),
                       b = operand(GetParam(), false, n, k, Draw::kNormal);
    for (const DType out : {DType::kF32, DType::kBF16}) {
      const Options options{.out = out, .fast = true};
      const std::vector<std::byte> first = gpu_->read_bytes(multiply(*gpu_, a, b, options));
      for (int again = 0; again < 3; ++again) EXPECT_EQ(gpu_->read_bytes(multiply(*gpu_, a, b, options)), first);
      EXPECT_EQ(other->read_bytes(multiply(*other, a, b, options)), first) << "on a context of its own";
    }
  }
}

TEST_P(GemmOnGpu, NanReachesItsRowOnly) {
  for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{256, 128, 512}, {65, 33, 77}}) {
    LargeOperand a = operand(GetParam(), true, m, k, Draw::kNormal);
    const LargeOperand b = operand(GetParam(), false, n, k, Draw::kNormal);
    a.put_nan(5, k - 1);
    const std::vector<float> made = gpu_->read(multiply(*gpu_, a, b, {}));
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j)
        ASSERT_EQ(std::isnan(made[static_cast<std::size_t>(i * n + j)]), i == 5) << i << ", " << j;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryKind, GemmOnGpu, ::testing::ValuesIn(kEveryKind), kinds_name);

// Row i of `a` is the byte i followed by zeros and `b` is all ones, so that each product is one dequantized value.
TEST(GemmEmulation, DequantizesEveryByteExactlyUnlessItsScaleIsTiny) {
  constexpr std::int64_t kValues = 256, kLength = 32, kOnes = 16;
  const std::unique_ptr<Device> gpu = open("cuda"), cpu = open("cpu");
  const auto multiply_quantized = [&](Device& device, DType dtype, int scale) {
    const auto bytes = [&](std::int64_t rows, std::int64_t cols, DType type, auto&& value) {
      const Tensor tensor = device.allocate({Shape{rows, cols}, type}, support::anyone(device));
      std::vector<std::byte> contents;
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < cols; ++j) contents.push_back(static_cast<std::byte>(value(i, j)));
      device.write_bytes(tensor, contents);
      return tensor;
    };
    const Tensor data = bytes(kValues, kLength, dtype, [](std::int64_t i, std::int64_t l) { return l == 0 ? i : 0; });
    const Tensor ones = bytes(kOnes, kLength, DType::kE4M3, [](std::int64_t, std::int64_t) { return 0x38; });
    const Tensor scales = bytes(kValues, 4, DType::kE8M0, [&](std::int64_t, std::int64_t) { return scale; });
    const Tensor unit = bytes(128, 4, DType::kE8M0, [](std::int64_t, std::int64_t) { return 127; });
    const auto operand = [](const Tensor& values, const Tensor& of) {
      return OperandView{values.view(),
                         {.data = of.view().data,
                          .dtype = DType::kE8M0,
                          .block_rows = 1,
                          .block_cols = 32,
                          .row_stride = 4,
                          .col_stride = 1,
                          .storage_elems = of.numel()}};
    };
    const Tensor out = device.allocate({Shape{kValues, kOnes}, DType::kF32}, support::anyone(device));
    device.launch(&KernelTable::gemm,
                  GemmArgs{.a = operand(data, scales), .b = operand(ones, unit), .out = out.view(), .bias = {}});
    return device.read(out);
  };
  for (const DType dtype : {DType::kE4M3, DType::kE5M2}) {
    const int exact_from = 127 - (dtype == DType::kE4M3 ? 124 : 117);
    for (const int scale : {0, 1, exact_from - 1, exact_from, 30, 127, 200, 246, 254, 255}) {
      const std::vector<float> made = multiply_quantized(*gpu, dtype, scale),
                               exact = multiply_quantized(*cpu, dtype, scale);
      const double bound = scale < exact_from ? 0x1p-134 : 0.0;
      for (std::size_t i = 0; i < made.size(); ++i) {
        const bool equal = made[i] == exact[i] || (std::isnan(made[i]) && std::isnan(exact[i]));
        ASSERT_TRUE(equal || std::fabs(double{made[i]} - double{exact[i]}) <= bound)
            << name(dtype) << " code " << i / kOnes << " under scale " << scale << ": " << made[i] << " for "
            << exact[i];
      }
    }
  }
}

// Terms of one sign show what fast accumulation loses: with promoted accumulators the sums stay within the bound, with
// fast accumulation they do not. So the bound distinguishes the two, and the switch reaches the GPU.
TEST(GemmAccumulation, FastSumsFailTheBoundOfPromotedOnes) {
  const std::unique_ptr<Device> gpu = open("cuda");
  const Kinds kinds{Kind::kPerTensor, Kind::kPerTensor};
  const LargeOperand a = operand(kinds, true, 512, 14336, Draw::kPositive),
                     b = operand(kinds, false, 512, 14336, Draw::kPositive);
  static constexpr MatrixUnit kUnits;
  const auto within = [&](bool fast) {
    Sampled entries = sample(*gpu, a, b, {.out = DType::kF32, .fast = fast}, nullptr);
    std::size_t at = 0;
    std::vector<double> products(14336);
    for (const std::int64_t i : sampled(512))
      for (const std::int64_t j : sampled(512)) {
        for (std::int64_t l = 0; l < 14336; ++l) products[static_cast<std::size_t>(l)] = a.at(i, l) * b.at(j, l);
        entries.expected.error[at++] += reference::error_on(kUnits, products);
      }
    RecordProperty(fast ? "fast" : "promoted", std::to_string(entries.made[0] / entries.expected.value[0] - 1.0));
    return all_within(entries.made, entries.expected);
  };
  EXPECT_TRUE(within(false));
  EXPECT_FALSE(within(true));
}

}  // namespace
}  // namespace fp8lab

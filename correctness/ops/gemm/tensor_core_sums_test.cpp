#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/gemm/matmul.h"
#include "ops/gemm.h"
#include "ops/gemm/gemm_operands.h"
#include "reference/compare.h"
#include "reference/float8_sums.h"
#include "reference/test_data.h"
#include "support/selected_set.h"

// The host's sums of FP8 products as a Hopper tensor core makes them: bit for bit the definition in double, which has
// the values that were measured on a GPU (float8_sums_test.cpp).
namespace fp8lab::cpu {
namespace {

using reference::MatrixUnit;
using reference::sum_on;

constexpr MatrixUnit kTensorCore, kFastTensorCore{.promoted_every = reference::kNeverPromoted};

/// Values of E4M3 with magnitudes over all its binades.
std::vector<float> e4m3_values(std::int64_t count, std::uint64_t seed) {
  const reference::SmallFloat& e4m3 = gemm_test::decoder(DType::kE4M3);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t drawn = reference::scramble(seed ^ reference::scramble(static_cast<std::uint64_t>(i)));
    const auto code = static_cast<std::uint8_t>(drawn % (e4m3.max_code() + 1) | (drawn >> 40 & 0x80u));
    values.push_back(static_cast<float>(e4m3.decode(code)));
  }
  return values;
}

std::vector<float> multiplied(std::int64_t m, std::int64_t n, std::int64_t k, const std::vector<float>& a,
                              const std::vector<float>& b, Sums sums) {
  std::vector<float> c(static_cast<std::size_t>(m * n), std::nanf(""));
  matmul({.m = m,
          .n = n,
          .k = k,
          .a = {a.data(), k, false},
          .b = {b.data(), k, false},
          .c = c.data(),
          .c_row_stride = n,
          .sums = sums});
  return c;
}

std::vector<double> products(const std::vector<float>& a, const std::vector<float>& b, std::int64_t i, std::int64_t j,
                             std::int64_t k) {
  std::vector<double> out;
  for (std::int64_t l = 0; l < k; ++l)
    out.push_back(static_cast<double>(a[static_cast<std::size_t>(i * k + l)]) *
                  static_cast<double>(b[static_cast<std::size_t>(j * k + l)]));
  return out;
}

struct SummedProblem {
  std::int64_t m, n, k;
};

TEST(TensorCoreSums, HaveTheBitsOfTheDefinitionUnderEveryInstructionSet) {
  for (const std::string_view name : cpu_instruction_sets()) {
    const support::SelectedSet selected(name);
    for (const auto& [m, n, k] : {SummedProblem{1, 1, 1},
                                  {3, 5, 31},
                                  {7, 33, 32},
                                  {13, 65, 33},
                                  {16, 64, 128},
                                  {5, 40, 129},
                                  {9, 17, 256},
                                  {14, 70, 300},
                                  {2, 3, 1000}}) {
      const std::vector<float> a = e4m3_values(m * k, 1), b = e4m3_values(n * k, 2);
      for (const bool fast : {false, true}) {
        const std::vector<float> c = multiplied(m, n, k, a, b, fast ? Sums::kFastTensorCore : Sums::kTensorCore);
        std::int64_t unlike_f32 = 0;
        const std::vector<float> f32 = multiplied(m, n, k, a, b, Sums::kF32);
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < n; ++j) {
            const auto at = static_cast<std::size_t>(i * n + j);
            ASSERT_EQ(c[at], static_cast<float>(sum_on(fast ? kFastTensorCore : kTensorCore, products(a, b, i, j, k))))
                << name << ": " << m << " x " << n << " x " << k << ", element " << i << ", " << j << ", fast " << fast;
            unlike_f32 += c[at] != f32[at];
          }
        if (m * n > 100) {
          EXPECT_GT(unlike_f32, m * n / 2);
        }
      }
    }
  }
}

TEST(TensorCoreSums, HaveTheValuesMeasuredOnAGpu) {
  const auto sum = [](const std::vector<float>& a, const std::vector<float>& b) {
    return multiplied(1, 1, static_cast<std::int64_t>(a.size()), a, b, Sums::kFastTensorCore)[0];
  };
  EXPECT_EQ(sum({16.0f, 1.5f, 1.5f}, {16.0f, 0x1p-5f, 0x1p-5f}), 256.0625f);  // 256.09375 exactly
  EXPECT_EQ(sum({16.0f, 0x1p-5f}, {16.0f, 1.0f}), 256.03125f);
  EXPECT_EQ(sum({16.0f, 0x1p-6f}, {16.0f, 1.0f}), 256.0f);
  EXPECT_EQ(sum(std::vector<float>(32, 448.0f), std::vector<float>(32, 1.0f)), 14336.0f);
  EXPECT_EQ(sum({0x1p-9f}, {1.0f}), 0x1p-9f);
  // An instruction that adds zeros truncates what the accumulator holds: 1 + 2^-13 stays, 65537 becomes 65536.
  std::vector<float> ones(64, 0.0f), held(64, 0.0f);
  ones[0] = ones[1] = 1.0f;
  held[0] = 1.0f;
  held[1] = 0x1p-13f;
  EXPECT_EQ(sum(held, ones), 1.0f + 0x1p-13f);
  std::fill_n(ones.begin(), 32, 256.0f);
  std::fill_n(held.begin(), 32, 8.0f);
  ones[31] = 1.0f, held[31] = 1.0f;  // 31 x 2048 + 1, of which the next instruction keeps multiples of 4
  EXPECT_EQ(sum(held, ones), 63488.0f);
}

TEST(TensorCoreSums, OfInfAndNanAreThoseOfF32) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const Sums sums : {Sums::kTensorCore, Sums::kFastTensorCore}) {
    std::vector<float> a(300, 1.0f), b(2 * 300, 1.0f);
    a[200] = kInf;
    std::vector<float> c = multiplied(1, 2, 300, a, b, sums);
    EXPECT_EQ(c[0], kInf);
    b[300 + 299] = -kInf;
    c = multiplied(1, 2, 300, a, b, sums);
    EXPECT_EQ(c[0], kInf);
    EXPECT_TRUE(std::isnan(c[1]));
    a[200] = std::nanf("");
    EXPECT_TRUE(std::isnan(multiplied(1, 2, 300, a, b, sums)[0]));
  }
}

// Which products are summed so: products of data under FP32 scales, in one accumulator if the caller allows it.
TEST(TensorCoreSums, AreThoseOfProductsThatHopperHas) {
  using gemm_test::Kind;
  const auto device = open_device("cpu", {.memory = {.capacity_bytes = 0, .poison = true}, .tensor_core_sums = true});
  const auto exact = open_device("cpu", {.memory = {.capacity_bytes = 0, .poison = true}});
  constexpr std::int64_t kRows = 16, kCols = 512;
  const auto summed = [&](Device& on, Kind kind, bool fast) {
    const gemm_test::Operand a = gemm_test::make_operand(on, {.kind = kind, .rows = kRows, .cols = kCols, .seed = 1});
    const gemm_test::Operand b = gemm_test::make_operand(on, {.kind = kind, .rows = kRows, .cols = kCols, .seed = 2});
    return on.read(gemm(on, {.a = a.view,
                             .b = b.view,
                             .out_dtype = DType::kF32,
                             .holder = support::anyone(on),
                             .fast_accumulation = fast}));
  };
  for (const Kind kind : {Kind::kBF16, Kind::kMxfp8})
    EXPECT_TRUE(reference::bitwise_equal(summed(*device, kind, true), summed(*exact, kind, true)));
  const std::vector<float> promoted = summed(*device, Kind::kPerTensor, false);
  EXPECT_FALSE(reference::bitwise_equal(promoted, summed(*exact, Kind::kPerTensor, false)));
  EXPECT_FALSE(reference::bitwise_equal(promoted, summed(*device, Kind::kPerTensor, true)));
  const std::vector<float> blocks = summed(*device, Kind::kSquareBlocks, false);
  EXPECT_FALSE(reference::bitwise_equal(blocks, summed(*exact, Kind::kSquareBlocks, false)));
  EXPECT_TRUE(reference::bitwise_equal(blocks, summed(*device, Kind::kSquareBlocks, true)));
}

}  // namespace
}  // namespace fp8lab::cpu

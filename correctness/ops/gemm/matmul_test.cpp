#include "backend/cpu/gemm/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "backend/cpu/loops.h"
#include "backend/instruction_sets.h"
#include "reference/compare.h"
#include "reference/expected.h"
#include "reference/test_data.h"
#include "support/dense.h"
#include "support/selected_set.h"

// Products of every layout under every instruction set of this machine, bit for bit the loop that defines them.
namespace fp8lab::cpu {
namespace {

using reference::Expected;
using reference::gaussian_values;
using reference::kUnit;
using support::SelectedSet;

struct Problem {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
};

/// An operand of `rows` x `cols`, stored as asked, with `padding` unused elements of NaN after every stored row.
struct Stored {
  Stored(std::int64_t rows, std::int64_t cols, bool transposed_, std::uint64_t seed, std::int64_t padding = 0)
      : transposed(transposed_),
        row_stride((transposed_ ? rows : cols) + padding),
        values(static_cast<std::size_t>((transposed_ ? cols : rows) * row_stride), std::nanf("")) {
    const std::vector<float> data = gaussian_values(rows * cols, seed);  // the same values, however they are stored
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) values[index(i, j)] = data[static_cast<std::size_t>(i * cols + j)];
  }
  std::size_t index(std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(transposed ? j * row_stride + i : i * row_stride + j);
  }
  float at(std::int64_t i, std::int64_t j) const { return values[index(i, j)]; }
  MatmulOperand operand() const { return {values.data(), row_stride, transposed}; }
  /// The operand from row `first` on. An operand without elements has no address to add to.
  MatmulOperand rows_from(std::int64_t first) const {
    return {values.empty() ? nullptr : values.data() + index(first, 0), row_stride, transposed};
  }

  bool transposed;
  std::int64_t row_stride;
  std::vector<float> values;
};

/// The definition of matmul.h, element by element.
std::vector<float> defined(const Problem& p, const Stored& a, const Stored& b) {
  std::vector<float> c;
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      float total = 0.0f;
      for (std::int64_t begin = 0; begin < p.k; begin += 256) {
        float sum = 0.0f;
        for (std::int64_t l = begin; l < std::min<std::int64_t>(begin + 256, p.k); ++l) sum += a.at(i, l) * b.at(j, l);
        total += sum;
      }
      c.push_back(total);
    }
  return c;
}

/// Returns the result, which has `padding` elements after every row that must stay as they were.
std::vector<float> run(const Problem& p, MatmulOperand a, MatmulOperand b, std::int64_t padding = 0,
                       const MatmulLoops& loops = cpu::loops().matmul) {
  constexpr float kUntouched = -77.0f;
  const std::int64_t stride = p.n + padding;
  std::vector<float> c(static_cast<std::size_t>(p.m * stride), std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < c.size(); ++i)
    if (static_cast<std::int64_t>(i) % stride >= p.n) c[i] = kUntouched;
  matmul({.m = p.m, .n = p.n, .k = p.k, .a = a, .b = b, .c = c.data(), .c_row_stride = stride}, loops);
  std::vector<float> packed;
  for (std::size_t i = 0; i < c.size(); ++i)
    if (static_cast<std::int64_t>(i) % stride < p.n)
      packed.push_back(c[i]);
    else
      EXPECT_EQ(c[i], kUntouched);
  return packed;
}

class Matmul : public ::testing::TestWithParam<Problem> {};

TEST_P(Matmul, EveryInstructionSetAndLayout_HasTheBitsOfTheDefinition) {
  const Problem p = GetParam();
  const std::vector<float> expected = defined(p, Stored(p.m, p.k, false, 1), Stored(p.n, p.k, false, 2));
  for (const std::string_view name : cpu_instruction_sets()) {
    const SelectedSet selected(name);
    for (const bool a_transposed : {false, true})
      for (const bool b_transposed : {false, true})
        for (const std::int64_t padding : {0, 3}) {
          SCOPED_TRACE(testing::Message()
                       << name << (a_transposed ? " t" : " n") << (b_transposed ? "t" : "n") << padding);
          const Stored a(p.m, p.k, a_transposed, 1, padding), b(p.n, p.k, b_transposed, 2, padding);
          EXPECT_TRUE(reference::bitwise_equal(run(p, a.operand(), b.operand(), padding), expected));
        }
  }
}

TEST_P(Matmul, LoopsLeftToOtherProcessors_HaveTheBitsOfTheDefinition) {
  const Problem p = GetParam();
  const Stored a(p.m, p.k, false, 1), b(p.n, p.k, false, 2);
  for (const MatmulLoops* loops : other_matmul_loops())
    EXPECT_TRUE(reference::bitwise_equal(run(p, a.operand(), b.operand(), 3, *loops), defined(p, a, b)));
}

TEST_P(Matmul, SingleRows_HaveTheBitsOfTheFullProduct) {
  const Problem p = GetParam();
  for (const bool transposed : {false, true}) {
    const Stored a(p.m, p.k, transposed, 1), b(p.n, p.k, transposed, 2);
    const std::vector<float> all = run(p, a.operand(), b.operand());
    const std::int64_t first_i = p.m / 3, first_j = p.n / 2;
    const Problem part{.m = (p.m - first_i + 1) / 2, .n = (p.n - first_j + 1) / 2, .k = p.k};
    std::vector<float> expected;
    for (std::int64_t i = first_i; i < first_i + part.m; ++i)
      for (std::int64_t j = first_j; j < first_j + part.n; ++j)
        expected.push_back(all[static_cast<std::size_t>(i * p.n + j)]);
    EXPECT_TRUE(reference::bitwise_equal(run(part, a.rows_from(first_i), b.rows_from(first_j)), expected));
  }
}

// A term passes through a run's additions, then through the additions of the runs' sums; its product is rounded once.
TEST_P(Matmul, IsWithinTheBoundOfItsReduction) {
  const Problem p = GetParam();
  if (p.k == 0) GTEST_SKIP() << "a sum of nothing has no bound";
  const Stored a(p.m, p.k, false, 1), b(p.n, p.k, false, 2);
  const std::vector<float> c = run(p, a.operand(), b.operand());
  Expected expected(c.size());
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      const std::size_t at = static_cast<std::size_t>(i * p.n + j);
      double magnitude = 0.0;
      for (std::int64_t l = 0; l < p.k; ++l) {
        const double term = double{a.at(i, l)} * double{b.at(j, l)};
        expected.value[at] += term;
        magnitude += std::fabs(term);
      }
      const std::int64_t roundings = std::min(p.k, kMatmulRun + p.k / kMatmulRun) + 2;
      expected.error[at] = static_cast<double>(roundings) * kUnit * magnitude;
    }
  EXPECT_TRUE(reference::all_within({c.begin(), c.end()}, expected));
  EXPECT_TRUE(reference::refuses_mutations(expected));
}

INSTANTIATE_TEST_SUITE_P(Sizes, Matmul,
                         ::testing::Values(Problem{1, 1, 1}, Problem{1, 7, 3}, Problem{17, 1, 33}, Problem{4, 8, 4},
                                           Problem{12, 32, 256}, Problem{13, 33, 257}, Problem{64, 48, 128},
                                           Problem{3, 5, 0}, Problem{5, 2, 1}, Problem{127, 129, 65},
                                           Problem{130, 70, 1031}, Problem{200, 2060, 300}),
                         [](const auto& instance) {
                           const Problem& p = instance.param;
                           return std::to_string(p.m) + "x" + std::to_string(p.n) + "x" + std::to_string(p.k);
                         });

TEST(MatmulPlaces, EveryThreadAndAddress_HasTheSameBits) {
  const Problem p{70, 90, 300};
  const Stored a(p.m, p.k, false, 1), b(p.n, p.k, true, 2);
  const std::vector<float> once = run(p, a.operand(), b.operand());
  std::vector<float> elsewhere[2];
  std::thread first([&] { elsewhere[0] = run(p, a.operand(), b.operand()); });
  std::thread second([&] { elsewhere[1] = run(p, a.operand(), b.operand()); });
  first.join();
  second.join();
  EXPECT_TRUE(reference::bitwise_equal(elsewhere[0], once));
  EXPECT_TRUE(reference::bitwise_equal(elsewhere[1], once));

  std::vector<float> shifted(a.values.size() + 1);
  std::copy(a.values.begin(), a.values.end(), shifted.begin() + 1);
  EXPECT_TRUE(reference::bitwise_equal(run(p, {shifted.data() + 1, a.row_stride, false}, b.operand()), once));
}

TEST(MatmulValues, EveryInstructionSet_KeepsNanInfinityAndSubnormals) {
  const Problem p{2, 3, 3};
  Stored a(p.m, p.k, false, 1), b(p.n, p.k, false, 2);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  a.values = {1, 0, 0, 0, 1, 0};
  b.values = {std::nanf(""), 1, 0, 0, kInfinity, 0, 0x1p-149f, 0x1p-140f, 0};
  for (const std::string_view name : cpu_instruction_sets()) {
    const SelectedSet selected(name);
    const std::vector<float> c = run(p, a.operand(), b.operand());
    EXPECT_TRUE(std::isnan(c[0]));
    EXPECT_TRUE(std::isnan(c[1]));  // 0 * Inf
    EXPECT_EQ(c[2], 0x1p-149f);
    EXPECT_TRUE(std::isnan(c[3]));  // 0 * NaN
    EXPECT_EQ(c[4], kInfinity);
    EXPECT_EQ(c[5], 0x1p-140f);
  }
}

// A fused operation would keep the last bit of the product.
TEST(MatmulValues, EveryInstructionSet_RoundsAProductBeforeItIsAdded) {
  const Problem p{1, 1, 2};
  Stored a(p.m, p.k, false, 1), b(p.n, p.k, false, 2);
  a.values = {-1.0f, 1.0f + 0x1p-12f};
  b.values = {1.0f, 1.0f + 0x1p-12f};
  for (const std::string_view name : cpu_instruction_sets()) {
    const SelectedSet selected(name);
    EXPECT_EQ(run(p, a.operand(), b.operand()), std::vector<float>{0x1p-11f}) << name;  // fused it were 2^-11 + 2^-24
  }
}

/// c (+)= a b with `a` of m x k as given and `b` of k x n in groups of columns, by the loops of every instruction set.
void expect_unpacked_product(const Problem& p, bool transposed, bool accumulate) {
  const auto product_of = [&](const MatmulLoops& loops, const Stored& a, const std::vector<float>& b,
                              std::vector<float> c) {
    loops.multiply_unpacked({.m = p.m,
                             .n = p.n,
                             .k = p.k,
                             .a = a.values.data(),
                             .a_row_stride = transposed ? 1 : a.row_stride,
                             .a_col_stride = transposed ? a.row_stride : 1,
                             .b = b.data(),
                             .b_group_stride = p.k * kGroup,
                             .b_row_stride = kGroup,
                             .c = c.data(),
                             .c_row_stride = p.n,
                             .accumulate = accumulate});
    return c;
  };
  const Stored a(p.m, p.k, transposed, 1, 3);
  const std::vector<float> b = gaussian_values(p.k * p.n, 2), before = gaussian_values(p.m * p.n, 3);
  std::vector<float> expected;
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      float sum = 0.0f;
      for (std::int64_t k = 0; k < p.k; ++k)
        sum += a.at(i, k) * b[static_cast<std::size_t>((j / kGroup * p.k + k) * kGroup + j % kGroup)];
      expected.push_back(accumulate ? before[expected.size()] + sum : sum);
    }
  for (const Loops& loops : available_loops())
    EXPECT_TRUE(reference::bitwise_equal(product_of(loops.matmul, a, b, before), expected))
        << loops.instruction_set << ", " << p.m << " x " << p.n << " x " << p.k;
  for (const MatmulLoops* loops : other_matmul_loops())
    EXPECT_TRUE(reference::bitwise_equal(product_of(*loops, a, b, before), expected));
}

TEST(UnpackedProducts, EveryInstructionSet_HasTheBitsOfTheDefinition) {
  for (const std::int64_t groups : {1, 2, 3, 4, 5, 7, 8})
    for (const std::int64_t rows : {4, 12})
      for (const std::int64_t k : {1, 33})
        for (const bool transposed : {false, true})
          for (const bool accumulate : {false, true})
            expect_unpacked_product({rows, groups * kGroup, k}, transposed, accumulate);
}

TEST(InstructionSets, BestIsUsedUntilAnotherIsSelected_UnknownOnesAreRefused) {
  const std::vector<std::string_view> names = cpu_instruction_sets();
  EXPECT_EQ(names.back(), "baseline");
  for (const std::string_view name : names) {
    const SelectedSet selected(name);
    EXPECT_EQ(cpu_instruction_set(), name);
  }
  std::string listed;
  for (const std::string_view name : names) listed += (listed.empty() ? "" : ", ") + std::string(name);
  const std::string_view before = cpu_instruction_set();
  EXPECT_EQ(support::error_of([] { select_cpu_instruction_set("avx9"); }),
            "instruction set 'avx9' is none that this build and this processor have; those are " + listed);
  EXPECT_EQ(cpu_instruction_set(), before);
}

}  // namespace
}  // namespace fp8lab::cpu

#include "backend/cpu/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "reference/compare.h"
#include "reference/expected.h"
#include "reference/test_data.h"

// Built once for each library found, so that both doors are known to lead to the same room.
namespace fp8lab::cpu {
namespace {

using reference::Expected;
using reference::gaussian_values;
using reference::kUnit;

struct Problem {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  bool a_transposed;
  bool b_transposed;
};

/// An operand of `rows` x `cols`, stored as asked, with `padding` unused elements of NaN after every stored row.
struct Stored {
  Stored(std::int64_t rows_, std::int64_t cols_, bool transposed_, std::uint64_t seed, std::int64_t padding = 0)
      : transposed(transposed_),
        stored_cols(transposed_ ? rows_ : cols_),
        row_stride(stored_cols + padding),
        values(static_cast<std::size_t>((transposed_ ? cols_ : rows_) * row_stride)) {
    const std::vector<float> data = gaussian_values(static_cast<std::int64_t>(values.size()), seed);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::int64_t>(i) % row_stride < stored_cols ? data[i] : std::nanf("");
  }
  double at(std::int64_t i, std::int64_t j) const {
    return values[static_cast<std::size_t>(transposed ? j * row_stride + i : i * row_stride + j)];
  }
  MatmulOperand operand() const { return {values.data(), row_stride, transposed}; }

  bool transposed;
  std::int64_t stored_cols;
  std::int64_t row_stride;
  std::vector<float> values;
};

// k products and sums in any order: k roundings at most on the way of any term, and a last one for beta.
Expected product(const Problem& p, const Stored& a, const Stored& b, const std::vector<float>& before, float beta) {
  Expected expected(static_cast<std::size_t>(p.m * p.n));
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      const std::size_t at = static_cast<std::size_t>(i * p.n + j);
      double sum = beta == 0.0f ? 0.0 : double{beta} * double{before[at]};
      double magnitude = std::fabs(sum);
      for (std::int64_t l = 0; l < p.k; ++l) {
        sum += a.at(i, l) * b.at(j, l);
        magnitude += std::fabs(a.at(i, l) * b.at(j, l));
      }
      expected.value[at] = sum;
      expected.error[at] = static_cast<double>(p.k + 2) * kUnit * magnitude;
    }
  return expected;
}

std::vector<float> run(const Problem& p, const Stored& a, const Stored& b, std::vector<float> c, float beta) {
  matmul({.m = p.m,
          .n = p.n,
          .k = p.k,
          .a = a.operand(),
          .b = b.operand(),
          .c = c.data(),
          .c_row_stride = p.n,
          .beta = beta});
  return c;
}

std::vector<float> nans(const Problem& p) {
  return std::vector<float>(static_cast<std::size_t>(p.m * p.n), std::numeric_limits<float>::quiet_NaN());
}

class Matmul : public ::testing::TestWithParam<Problem> {};

TEST_P(Matmul, IsWithinTheBoundOfItsReduction) {
  const Problem p = GetParam();
  const Stored a(p.m, p.k, p.a_transposed, 1, 3), b(p.n, p.k, p.b_transposed, 2, 5);
  const Expected expected = product(p, a, b, {}, 0.0f);
  const std::vector<float> c = run(p, a, b, nans(p), 0.0f);
  EXPECT_TRUE(reference::all_within({c.begin(), c.end()}, expected));
  EXPECT_TRUE(reference::refuses_mutations(expected));
}

TEST_P(Matmul, AddsToWhatIsThere) {
  const Problem p = GetParam();
  const Stored a(p.m, p.k, p.a_transposed, 1), b(p.n, p.k, p.b_transposed, 2);
  const std::vector<float> before = gaussian_values(p.m * p.n, 3);
  const std::vector<float> c = run(p, a, b, before, 1.0f);
  EXPECT_TRUE(reference::all_within({c.begin(), c.end()}, product(p, a, b, before, 1.0f)));
}

TEST_P(Matmul, GivesTheSameBitsAgainOnEveryThreadAndAtEveryAddress) {
  const Problem p = GetParam();
  const Stored a(p.m, p.k, p.a_transposed, 1), b(p.n, p.k, p.b_transposed, 2);
  const std::vector<float> once = run(p, a, b, nans(p), 0.0f);
  EXPECT_TRUE(reference::bitwise_equal(run(p, a, b, nans(p), 0.0f), once));

  std::vector<float> elsewhere[2];
  std::thread first([&] { elsewhere[0] = run(p, a, b, nans(p), 0.0f); });
  std::thread second([&] { elsewhere[1] = run(p, a, b, nans(p), 0.0f); });
  first.join();
  second.join();
  EXPECT_TRUE(reference::bitwise_equal(elsewhere[0], once));
  EXPECT_TRUE(reference::bitwise_equal(elsewhere[1], once));

  std::vector<float> shifted(a.values.size() + 1);
  std::copy(a.values.begin(), a.values.end(), shifted.begin() + 1);
  std::vector<float> c = nans(p);
  matmul({.m = p.m,
          .n = p.n,
          .k = p.k,
          .a = {shifted.data() + 1, a.row_stride, a.transposed},
          .b = b.operand(),
          .c = c.data(),
          .c_row_stride = p.n});
  EXPECT_TRUE(reference::bitwise_equal(c, once));
}

INSTANTIATE_TEST_SUITE_P(Sizes, Matmul,
                         ::testing::Values(Problem{1, 1, 1, false, false}, Problem{1, 7, 3, false, true},
                                           Problem{17, 1, 33, true, false}, Problem{33, 31, 32, true, true},
                                           Problem{64, 48, 128, false, false}, Problem{127, 129, 65, false, true},
                                           Problem{257, 129, 65, true, true}, Problem{130, 70, 1031, false, false},
                                           Problem{512, 512, 257, true, false}),
                         [](const auto& instance) {
                           const Problem& p = instance.param;
                           return std::to_string(p.m) + "x" + std::to_string(p.n) + "x" + std::to_string(p.k) +
                                  (p.a_transposed ? "t" : "n") + (p.b_transposed ? "t" : "n");
                         });

TEST(MatmulValues, KeepsNanAndInfinity) {
  const Problem p{2, 2, 3, false, false};
  Stored a(p.m, p.k, false, 1), b(p.n, p.k, false, 2);
  a.values = {1, 0, 0, 0, 1, 0};
  b.values = {std::nanf(""), 1, 0, 0, std::numeric_limits<float>::infinity(), 0};
  const std::vector<float> c = run(p, a, b, nans(p), 0.0f);
  EXPECT_TRUE(std::isnan(c[0]));
  EXPECT_TRUE(std::isnan(c[1]));  // 0 * Inf
  EXPECT_TRUE(std::isnan(c[2]));  // 0 * NaN
  EXPECT_EQ(c[3], std::numeric_limits<float>::infinity());
}

TEST(MatmulThreads, StartsNone) {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const auto before = threads();
  const Problem p{512, 512, 512, false, false};
  const Stored a(p.m, p.k, false, 1), b(p.n, p.k, false, 2);
  run(p, a, b, nans(p), 0.0f);
  EXPECT_EQ(threads(), before);
}

TEST(MatmulValues, NamesItsLibrary) {
  EXPECT_NE(std::string(matmul_library()).find('.'), std::string::npos) << matmul_library();
}

}  // namespace
}  // namespace fp8lab::cpu

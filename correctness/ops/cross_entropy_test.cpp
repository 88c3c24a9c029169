#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/embedding.h"
#include "ops/loss.h"
#include "reference/expected.h"
#include "reference/finite_difference.h"
#include "reference/test_data.h"
#include "support/dense.h"

// The loss of a language model compared with its definition in double, in one row of a few logits and in rows of
// several times the terms that are added at once.
namespace fp8lab {
namespace {

using reference::Expected;
using reference::kUnit;
using support::make_tensor;
using support::read;
using Values = std::vector<double>;
using Tokens = std::vector<std::int32_t>;

Tokens drawn(std::int64_t count, std::int64_t vocabulary, std::uint64_t seed) {
  Tokens tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>(reference::uniform(seed, static_cast<std::uint64_t>(i)) *
                                               static_cast<double>(vocabulary)));
  return tokens;
}

/// ln of the sum of exp(x) over a row.
double log_sum(const Values& x, std::size_t first, std::size_t count) {
  const double largest = *std::max_element(x.begin() + static_cast<std::ptrdiff_t>(first),
                                           x.begin() + static_cast<std::ptrdiff_t>(first + count));
  double sum = 0.0;
  for (std::size_t j = first; j < first + count; ++j) sum += std::exp(x[j] - largest);
  return largest + std::log(sum);
}

double mean_loss(const Values& logits, const Tokens& targets) {
  const std::size_t vocabulary = logits.size() / targets.size();
  double sum = 0.0;
  for (std::size_t i = 0; i < targets.size(); ++i)
    sum += log_sum(logits, i * vocabulary, vocabulary) - logits[i * vocabulary + static_cast<std::size_t>(targets[i])];
  return sum / static_cast<double>(targets.size());
}

class CrossEntropyTest : public ::testing::TestWithParam<DType> {
 protected:
  Tensor logits(const Shape& shape, std::uint64_t seed, double deviation = 2.0) {
    return make_tensor(*device_, shape, GetParam(), reference::gaussian_values(shape.numel(), seed, deviation));
  }
  Tensor tokens(const Tokens& values, std::int64_t vocabulary) {
    return make_tokens(*device_, values, vocabulary, anyone());
  }
  Tensor scalar(float value) { return make_tensor(*device_, {1, 1}, DType::kF32, {value}); }
  CrossEntropy loss_of(const Tensor& x, const Tokens& targets) {
    return cross_entropy(*device_, x, tokens(targets, x.cols()), anyone(), anyone());
  }
  HolderId anyone() { return support::anyone(*device_); }
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
};

/// An exponential is within 2 ulp of its own, and a term goes through count / 2048 + 11 sums and at most the same
/// number of factors. The relative error of a sum is the absolute error of its logarithm.
double error_of_log_sum(std::int64_t vocabulary, double value) {
  const double sums = static_cast<double>(vocabulary) / 2048.0 + 11.0;
  return kUnit * (4.0 + 6.0 * sums + 4.0 * std::fabs(value));
}

TEST_P(CrossEntropyTest, LossEqualsItsDefinition) {
  for (const std::int64_t vocabulary : {1, 7, 65, 2048, 2049, 10007}) {
    const Tensor x = logits({9, vocabulary}, 1);
    const Tokens targets = drawn(9, vocabulary, 2);
    const CrossEntropy made = loss_of(x, targets);
    const Values at = read(*device_, x);
    Expected loss(1), sums(9);
    loss.value[0] = mean_loss(at, targets);
    loss.error[0] = error_of_log_sum(vocabulary, 20.0);
    for (std::size_t i = 0; i < 9; ++i) {
      sums.value[i] = log_sum(at, i * static_cast<std::size_t>(vocabulary), static_cast<std::size_t>(vocabulary));
      sums.error[i] = error_of_log_sum(vocabulary, sums.value[i]);
    }
    EXPECT_TRUE(all_within(read(*device_, made.loss), loss)) << vocabulary;
    EXPECT_TRUE(all_within(read(*device_, made.log_sums), sums)) << vocabulary;
    EXPECT_TRUE(vocabulary == 1 || refuses_mutations(sums));
  }
}

// exp() of these logits overflows or is 0, of theirs differences to the maximum it is neither. The largest comes first,
// last, or in another run than the rest.
TEST_P(CrossEntropyTest, LargeLogitsNeitherOverflowNorVanish) {
  for (const float offset : {1000.0f, -1000.0f, 3e4f})
    for (const std::size_t peak : {std::size_t{0}, std::size_t{13}, std::size_t{2999}}) {
      std::vector<float> values(3000, offset);
      values[peak] += 4.0f;
      const Tensor x = make_tensor(*device_, {1, 3000}, GetParam(), values);
      const double above = read(*device_, x)[peak] - read(*device_, x)[1];  // as rounded
      const double expected = std::log(2999.0 + std::exp(above));
      EXPECT_NEAR(read(*device_, loss_of(x, {1}).loss)[0], expected, 1e-4) << offset << " " << peak;
      EXPECT_NEAR(read(*device_, loss_of(x, {static_cast<std::int32_t>(peak)}).loss)[0], expected - above, 1e-4);
    }
}

TEST_P(CrossEntropyTest, ImpossibleTokensCostNothingAndNaNShows) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values(4096, -inf);
  values[3] = 1.0f;
  values[4000] = 1.0f;
  const Tensor x = make_tensor(*device_, {1, 4096}, GetParam(), values);
  EXPECT_NEAR(read(*device_, loss_of(x, {3}).loss)[0], std::log(2.0), 1e-6);
  EXPECT_EQ(read(*device_, loss_of(x, {5}).loss)[0], static_cast<double>(inf));
  for (const float bad : {inf, std::numeric_limits<float>::quiet_NaN()}) {
    values[77] = bad;
    EXPECT_TRUE(std::isnan(read(*device_, loss_of(make_tensor(*device_, {1, 4096}, GetParam(), values), {3}).loss)[0]));
  }
}

// The error of a gradient: the error of exp() at a logit and a logarithm of up to 8, then two products.
TEST_P(CrossEntropyTest, GradientEqualsTheDerivativeAndTakesThePlaceOfTheLogits) {
  for (const std::int64_t vocabulary : {5, 65, 2100}) {
    const std::int64_t rows = vocabulary > 100 ? 1 : 3;
    const Tensor x = logits({rows, vocabulary}, 3, 1.0);
    const Tokens targets = drawn(rows, vocabulary, 4);
    const double grad_loss = 2.5;
    Expected expected(static_cast<std::size_t>(x.numel()));
    expected.value =
        reference::gradient([&](const Values& at) { return grad_loss * mean_loss(at, targets); }, read(*device_, x));
    for (std::size_t i = 0; i < expected.value.size(); ++i)
      expected.error[i] =
          (8.0 + error_of_log_sum(vocabulary, 8.0) / kUnit) * kUnit * (std::fabs(expected.value[i]) + 1e-3) +
          reference::difference_error(10.0);
    expected = rounded_to(GetParam(), expected);
    const CrossEntropy made = loss_of(x, targets);
    cross_entropy_gradient_in_place(*device_, x, tokens(targets, vocabulary), made.log_sums, scalar(2.5f));
    EXPECT_TRUE(all_within(read(*device_, x), expected)) << vocabulary;
    EXPECT_TRUE(refuses_mutations(expected)) << vocabulary;
  }
}

// A row's gradient shows to which tokens probability is to go: it adds up to 0.
TEST_P(CrossEntropyTest, GradientOfARowAddsUpToNothing) {
  const Tensor x = logits({4, 300}, 5);
  const Tokens targets = drawn(4, 300, 6);
  const CrossEntropy made = loss_of(x, targets);
  cross_entropy_gradient_in_place(*device_, x, tokens(targets, 300), made.log_sums, scalar(1.0f));
  const Values gradient = read(*device_, x);
  for (std::size_t i = 0; i < 4; ++i) {
    double sum = 0.0;
    for (std::size_t j = 0; j < 300; ++j) sum += gradient[300 * i + j];
    EXPECT_NEAR(sum, 0.0, 300 * 0x1p-9 * 0.25 / 8.0);
    EXPECT_LT(gradient[300 * i + static_cast<std::size_t>(targets[i])], 0.0);
  }
}

TEST_P(CrossEntropyTest, RefusalsNameTheArgumentAndTheRule) {
  const Tensor x = logits({2, 3}, 1);
  const std::string type(name(GetParam()));
  EXPECT_EQ(support::error_of([&] { loss_of(x, {1}); }),
            "cross_entropy: targets is i32 [1]; it must have 2 elements, one for each row of logits");
  EXPECT_EQ(support::error_of([&] { tokens({0, 3}, 3); }),
            "make_tokens: token 1 is 3; a vocabulary of 3 has the tokens 0 to 2");
  EXPECT_EQ(support::error_of([&] { cross_entropy(*device_, x, x, anyone(), anyone()); }),
            "cross_entropy: targets is " + type + " [2, 3]; it must be i32");
  EXPECT_EQ(support::error_of([&] { loss_of(logits({0, 3}, 1), {}); }),
            "cross_entropy: logits is " + type + " [0, 3]; a mean needs at least one row");
}

INSTANTIATE_TEST_SUITE_P(Types, CrossEntropyTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& instance) { return std::string(name(instance.param)); });

}  // namespace
}  // namespace fp8lab

// The way of tokens through a mixture of experts: choices, rows, sums, and their gradients.

#include "ops/experts/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "reference/test_data.h"
#include "support/dense.h"
#include "support/test_device.h"

namespace fp8lab {
namespace {

using support::make_tensor;
using support::read;
using Values = std::vector<double>;
using Numbers = std::vector<std::int32_t>;

class RoutingTest : public ::testing::Test {
 protected:
  HolderId anyone() { return support::anyone(*device_); }
  Tensor floats(const Shape& shape, const std::vector<float>& values) {
    return make_tensor(*device_, shape, DType::kF32, values);
  }
  Tensor random(const Shape& shape, std::uint64_t seed) {
    return floats(shape, reference::gaussian_values(shape.numel(), seed));
  }
  Tensor numbers(const Shape& shape, const Numbers& values) {
    const Tensor out = device_->allocate({shape, DType::kI32}, anyone());
    device_->write_bytes(out, std::as_bytes(std::span(values)));
    return out;
  }
  Numbers numbers_of(const Tensor& tensor) {
    Numbers out(static_cast<std::size_t>(tensor.numel()));
    device_->read_bytes_to(tensor, std::as_writable_bytes(std::span(out)));
    return out;
  }
  Numbers chosen(const std::vector<float>& logits, std::int64_t choices) {
    const Tensor row = floats({1, std::ssize(logits)}, logits);
    return numbers_of(route(*device_, row, {.choices = choices}, anyone()).experts);
  }
  std::unique_ptr<Device> device_ = support::open_poisoned_device("hopper");
};

TEST_F(RoutingTest, LargestLogitsAreChosen_EqualOnesByTheirNumber_NaNFirst) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
  EXPECT_EQ(chosen({1, 4, 2, 3}, 3), (Numbers{1, 3, 2}));
  EXPECT_EQ(chosen({2, 2, 2, 2}, 2), (Numbers{0, 1}));
  EXPECT_EQ(chosen({1, 3, 0, 3}, 3), (Numbers{1, 3, 0}));
  EXPECT_EQ(chosen({1, nan, infinite, nan}, 3), (Numbers{1, 3, 2}));
  EXPECT_EQ(chosen({-infinite, -infinite, 0}, 2), (Numbers{2, 0}));
}

TEST_F(RoutingTest, WeightsAreTheSoftmaxOverTheChosen_AndNaNReachesThem) {
  const std::vector<float> logits{0.5f, -1.0f, 2.0f, 1.25f};
  const Values weights = read(*device_, route(*device_, floats({1, 4}, logits), {.choices = 3}, anyone()).weights);
  const double sum = std::exp(2.0) + std::exp(1.25) + std::exp(0.5);
  EXPECT_NEAR(weights[0], std::exp(2.0) / sum, 1e-6);
  EXPECT_NEAR(weights[1], std::exp(1.25) / sum, 1e-6);
  EXPECT_NEAR(weights[2], std::exp(0.5) / sum, 1e-6);
  const std::vector<float> broken{0.0f, std::numeric_limits<float>::quiet_NaN(), 1.0f};
  for (const double weight : read(*device_, route(*device_, floats({1, 3}, broken), {.choices = 2}, anyone()).weights))
    EXPECT_TRUE(std::isnan(weight));
}

TEST_F(RoutingTest, RowsOfAnExpertFollowEachOther_FromAMultiple) {
  const Tensor experts = numbers({4, 2}, {2, 0, 0, 2, 2, 3, 2, 0});
  const GroupedRows grouped = group_rows(*device_, experts, 4, 4, anyone());
  EXPECT_EQ(numbers_of(grouped.begins), (Numbers{0, 4, 4, 8, 12}));
  EXPECT_EQ(numbers_of(grouped.rows), (Numbers{4, 0, 1, 5, 6, 8, 7, 2}));
  EXPECT_EQ(grouped.sources.numel(), rows_of_choices(4, 2, 4, 4));
  EXPECT_EQ(numbers_of(grouped.sources),
            (Numbers{1, 2, 7, -1, 0, 3, 4, 6, 5, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
  const std::vector<RowGroup> groups = read_groups(*device_, grouped, 4);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[1].rows, 0);
  EXPECT_EQ(groups[2].begin, 4);
  EXPECT_EQ(groups[2].rows, 4);
}

/// The rows that the counts of `experts` experts need.
std::int64_t rows_needed(const std::vector<std::int64_t>& counts, std::int64_t multiple) {
  std::int64_t rows = 0;
  for (const std::int64_t count : counts) rows += (count + multiple - 1) / multiple * multiple;
  return rows;
}

TEST_F(RoutingTest, RowsSufficeForEveryRouting_AndSomeRoutingNeedsAll) {
  const std::int64_t experts = 3;
  for (const std::int64_t all : {1, 2, 5, 8, 9})
    for (const std::int64_t multiple : {1, 2, 4}) {
      std::int64_t most = 0;
      for (std::int64_t a = 0; a <= all; ++a)
        for (std::int64_t b = 0; a + b <= all; ++b) most = std::max(most, rows_needed({a, b, all - a - b}, multiple));
      EXPECT_EQ(rows_of_choices(all, 1, experts, multiple), most) << all << " x " << multiple;
    }
}

TEST_F(RoutingTest, SumsOverChoicesUndoPermutations) {
  const Tensor experts = numbers({3, 2}, {1, 0, 1, 2, 0, 1}), x = random({3, 5}, 1);
  const GroupedRows grouped = group_rows(*device_, experts, 3, 2, anyone());
  const Tensor rows = permute(*device_, x, grouped, {}, anyone());
  const Values of_rows = read(*device_, rows), of_x = read(*device_, x);
  const Numbers sources = numbers_of(grouped.sources);
  for (std::size_t r = 0; r < sources.size(); ++r)
    for (std::size_t j = 0; j < 5; ++j)
      EXPECT_EQ(of_rows[r * 5 + j], sources[r] < 0 ? 0.0 : of_x[static_cast<std::size_t>(sources[r] / 2) * 5 + j]);
  const Values sums = read(*device_, unpermute(*device_, rows, grouped, {}, anyone()));
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], 2.0 * of_x[i]);
}

/// The sum of the products of all elements.
double product_of(const Values& a, const Values& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// unpermute() is linear in its rows and in its weights, so that its value times a gradient is the sum of each argument
// times its own gradient.
TEST_F(RoutingTest, GradientsOfSumsAreThoseOfALinearMap) {
  const Tensor experts = numbers({4, 2}, {1, 0, 1, 2, 0, 1, 2, 0}), weights = random({4, 2}, 2);
  const GroupedRows grouped = group_rows(*device_, experts, 3, 4, anyone());
  const Tensor rows = permute(*device_, random({4, 300}, 3), grouped, {}, anyone()), gradient = random({4, 300}, 4);
  const double value =
      product_of(read(*device_, unpermute(*device_, rows, grouped, weights, anyone())), read(*device_, gradient));
  const Values of_rows = read(*device_, permute(*device_, gradient, grouped, weights, anyone()));
  const Values of_weights = read(*device_, unpermute_weights(*device_, rows, grouped, gradient, anyone()));
  ASSERT_GT(std::abs(value), 1.0);
  EXPECT_NEAR(product_of(of_rows, read(*device_, rows)), value, 1e-4);
  EXPECT_NEAR(product_of(of_weights, read(*device_, weights)), value, 1e-4);
}

double sigmoid_of(double x) { return 1.0 / (1.0 + std::exp(-x)); }

std::vector<RouterRule> rules(std::int64_t choices) {
  std::vector<RouterRule> all{{.choices = choices}};
  for (const bool sigmoid : {false, true}) all.push_back({.choices = choices, .sigmoid = sigmoid, .scale = 2.5f});
  return all;
}

TEST_F(RoutingTest, GradientsOfLogitsAreSlopesOfTheWeights) {
  const std::vector<float> logits{0.5f, -1.0f, 2.0f, 1.25f};
  const Tensor grad_weights = floats({1, 2}, {0.75f, -0.5f});
  for (const RouterRule& rule : rules(2)) {
    const Routing routing = route(*device_, floats({1, 4}, logits), rule, anyone());
    const Values gradient =
        read(*device_, route_backward(*device_, routing, rule, grad_weights, {Shape{1, 4}, DType::kF32}, anyone()));
    const auto value = [&](double third, double fourth) {
      const auto score = [&](double logit) { return rule.sigmoid ? sigmoid_of(logit) : std::exp(logit); };
      return rule.scale * (0.75 * score(third) - 0.5 * score(fourth)) / (score(third) + score(fourth));
    };
    constexpr double kStep = 1e-4;
    EXPECT_EQ(gradient[0], 0.0);
    EXPECT_EQ(gradient[1], 0.0);
    EXPECT_NEAR(gradient[2], (value(2.0 + kStep, 1.25) - value(2.0 - kStep, 1.25)) / (2 * kStep), 1e-6);
    EXPECT_NEAR(gradient[3], (value(2.0, 1.25 + kStep) - value(2.0, 1.25 - kStep)) / (2 * kStep), 1e-6);
  }
}

/// The auxiliary loss of two tokens, in double: `counts` are constants.
double auxiliary_loss(const std::vector<double>& logits, bool sigmoid, const std::vector<double>& counts) {
  const std::size_t experts = counts.size(), tokens = logits.size() / experts;
  const auto score = [&](double logit) { return sigmoid ? sigmoid_of(logit) : std::exp(logit); };
  const double choices = std::accumulate(counts.begin(), counts.end(), 0.0);
  double loss = 0.0;
  for (std::size_t t = 0; t < tokens; ++t) {
    double all = 0.0, chosen = 0.0;
    for (std::size_t e = 0; e < experts; ++e) {
      const double own = score(logits[t * experts + e]);
      all += own;
      chosen += own * counts[e] / choices;
    }
    loss += chosen / all / static_cast<double>(tokens);
  }
  return static_cast<double>(experts) * loss;
}

// Each expert is the choice of two tokens. The loss is then 1 whatever the shares are.
TEST_F(RoutingTest, AuxiliaryLossHasNoGradientIfTokensAreEven) {
  const std::vector<float> logits{0.7f, 0.1f, 0.4f, 0.3f, 0.9f, -1.3f, -0.2f, 0.6f, 2.1f};
  const Tensor none = floats({3, 2}, std::vector<float>(6, 0.0f));
  for (const bool sigmoid : {false, true}) {
    const RouterRule rule{.choices = 2, .sigmoid = sigmoid, .aux_loss = 1000.0f};
    const Routing routing = route(*device_, floats({3, 3}, logits), rule, anyone());
    ASSERT_EQ(read(*device_, routing.counts), (Values{2.0, 2.0, 2.0}));
    EXPECT_EQ(read(*device_, route_backward(*device_, routing, rule, none, {Shape{3, 3}, DType::kF32}, anyone(), 1.0)),
              Values(9, 0.0));
  }
}

// Token 0 chooses experts 2 and 3, token 1 experts 0 and 2. One number of experts is larger than the number of partial
// sums.
TEST_F(RoutingTest, GradientsOfTheAuxiliaryLossAreItsSlopes) {
  for (const std::size_t experts : {4UL, 70UL}) {
    std::vector<float> logits(2 * experts, -1.5f);
    const std::vector<float> first{0.5f, -1.0f, 2.0f, 1.25f}, second{1.5f, -0.25f, 0.75f, -2.0f};
    std::copy(first.begin(), first.end(), logits.begin());
    std::copy(second.begin(), second.end(), logits.begin() + static_cast<std::ptrdiff_t>(experts));
    std::vector<double> counts(experts, 0.0);
    counts[0] = counts[3] = 1.0;
    counts[2] = 2.0;
    const auto columns = static_cast<std::int64_t>(experts);
    for (const bool sigmoid : {false, true}) {
      const RouterRule rule{.choices = 2, .sigmoid = sigmoid, .aux_loss = 0.75f};
      const Routing routing = route(*device_, floats({2, columns}, logits), rule, anyone());
      EXPECT_EQ(read(*device_, routing.counts), counts);
      const Tensor none = floats({2, 2}, {0.0f, 0.0f, 0.0f, 0.0f});
      const Values gradient = read(
          *device_, route_backward(*device_, routing, rule, none, {Shape{2, columns}, DType::kF32}, anyone(), 0.5));
      const std::vector<double> at(logits.begin(), logits.end());
      for (std::size_t i = 0; i < at.size(); ++i) {
        constexpr double kStep = 1e-5;
        std::vector<double> above = at, below = at;
        above[i] += kStep;
        below[i] -= kStep;
        const double slope =
            (auxiliary_loss(above, sigmoid, counts) - auxiliary_loss(below, sigmoid, counts)) / (2 * kStep);
        EXPECT_NEAR(gradient[i], 0.5 * 0.75 * slope, 1e-7) << experts << " experts, logit " << i;
      }
    }
  }
}

TEST_F(RoutingTest, AnAuxiliaryLossAndBiasesCountTheSameChoices) {
  const Tensor biases = floats({4}, {0.0f, 0.75f, 0.0f, -0.5f}), counts = floats({4}, {1.0f, 0.0f, 0.0f, 5.0f});
  const Routing routing =
      route(*device_, floats({1, 4}, {0.5f, -1.0f, 2.0f, 1.25f}), {.choices = 2, .sigmoid = true, .aux_loss = 1.0f},
            anyone(), {.biases = biases, .counts = counts});
  EXPECT_EQ(read(*device_, routing.counts), (Values{0.0, 1.0, 1.0, 0.0}));
  EXPECT_EQ(read(*device_, counts), (Values{1.0, 1.0, 1.0, 5.0}));
}

TEST_F(RoutingTest, WeightsOfSigmoidsAreInProportionToThemAndAddUpToTheScale) {
  const std::vector<float> logits{-30.0f, 1.0f, 3.0f, -2.0f};
  const Routing routing =
      route(*device_, floats({1, 4}, logits), {.choices = 3, .sigmoid = true, .scale = 2.5f}, anyone());
  EXPECT_EQ(numbers_of(routing.experts), (std::vector<std::int32_t>{2, 1, 3}));
  const double sum = sigmoid_of(3.0) + sigmoid_of(1.0) + sigmoid_of(-2.0);
  const Values weights = read(*device_, routing.weights), slopes = read(*device_, routing.slopes);
  for (const auto& [at, logit] : {std::pair<std::size_t, double>{0, 3.0}, {1, 1.0}, {2, -2.0}}) {
    EXPECT_NEAR(weights[at], 2.5 * sigmoid_of(logit) / sum, 1e-6);
    EXPECT_NEAR(slopes[at], sigmoid_of(-logit), 1e-6);
  }
}

TEST_F(RoutingTest, BiasesDecideTheChoiceAndNotTheWeights) {
  const std::vector<float> logits{0.5f, -1.0f, 2.0f, 1.25f};
  const RouterRule rule{.choices = 2, .sigmoid = true, .scale = 2.5f};
  const Tensor biases = floats({4}, {0.0f, 0.75f, 0.0f, -0.5f}), counts = floats({4}, {1.0f, 0.0f, 0.0f, 5.0f});
  const Routing routing = route(*device_, floats({1, 4}, logits), rule, anyone(), {.biases = biases, .counts = counts});
  EXPECT_EQ(numbers_of(routing.experts), (Numbers{1, 2}));
  const double first = sigmoid_of(-1.0), second = sigmoid_of(2.0);
  const Values weights = read(*device_, routing.weights);
  EXPECT_NEAR(weights[0], 2.5 * first / (first + second), 1e-6);
  EXPECT_NEAR(weights[1], 2.5 * second / (first + second), 1e-6);
  EXPECT_EQ(read(*device_, counts), (Values{1.0, 1.0, 1.0, 5.0}));
}

// The largest score is in a group whose two largest have a smaller sum.
TEST_F(RoutingTest, ExpertsAreChosenFromTheGroupsWithTheLargestSumsOfTwoScores) {
  const auto chosen_of = [&](const std::vector<float>& scores, std::int64_t top_groups) {
    std::vector<float> logits;
    for (const float score : scores) logits.push_back(std::log(score / (1.0f - score)));
    const RouterRule rule{.choices = 2, .sigmoid = true, .groups = 3, .top_groups = top_groups};
    return numbers_of(route(*device_, floats({1, 9}, logits), rule, anyone()).experts);
  };
  const std::vector<float> scores{0.95f, 0.1f, 0.1f, 0.5f, 0.8f, 0.3f, 0.6f, 0.1f, 0.5f};
  EXPECT_EQ(chosen_of(scores, 1), (Numbers{4, 3}));
  EXPECT_EQ(chosen_of(scores, 2), (Numbers{4, 6}));
  EXPECT_EQ(chosen_of(scores, 3), (Numbers{0, 4}));
  EXPECT_EQ(chosen_of({0.5f, 0.5f, 0.25f, 0.5f, 0.25f, 0.5f, 0.25f, 0.5f, 0.5f}, 1), (Numbers{0, 1}));
  EXPECT_EQ(chosen_of({0.5f, 0.5f, 0.25f, 0.5f, std::numeric_limits<float>::quiet_NaN(), 0.5f, 0.75f, 0.75f, 0.5f}, 1),
            (Numbers{4, 3}));
}

TEST_F(RoutingTest, BiasesMoveTowardsEqualCounts) {
  const RouterBalance balance{.biases = floats({5}, {0.0f, 0.5f, -0.5f, 0.25f, 0.0f}),
                              .counts = floats({5}, {4.0f, 0.0f, 9.0f, 3.0f, 4.0f})};
  balance_experts(*device_, balance, 0.125f);
  EXPECT_EQ(read(*device_, balance.biases), (Values{0.0, 0.625, -0.625, 0.375, 0.0}));
  EXPECT_EQ(read(*device_, balance.counts), (Values{0.0, 0.0, 0.0, 0.0, 0.0}));
  // A mean that is no integer.
  const RouterBalance uneven{.biases = floats({3}, {0.0f, 0.0f, 0.0f}), .counts = floats({3}, {2.0f, 1.0f, 1.0f})};
  balance_experts(*device_, uneven, 0.25f);
  EXPECT_EQ(read(*device_, uneven.biases), (Values{-0.25, 0.25, 0.25}));
}

TEST_F(RoutingTest, WrongArgumentsAreRefused) {
  const Tensor logits = floats({1, 2}, {0.0f, 1.0f});
  EXPECT_NE(support::error_of([&] { route(*device_, logits, {.choices = 3}, anyone()); }).find("there are 2 experts"),
            std::string::npos);
  const auto refusal = [&](const RouterRule& rule, const RouterBalance& balance) {
    return support::error_of([&] { route(*device_, random({1, 8}, 7), rule, anyone(), balance); });
  };
  EXPECT_NE(refusal({.choices = 2}, {.biases = floats({8}, std::vector<float>(8))}).find("added to sigmoids"),
            std::string::npos);
  EXPECT_NE(refusal({.choices = 2, .sigmoid = true}, {.biases = floats({2}, {0.0f, 0.0f})}).find("one for each expert"),
            std::string::npos);
  EXPECT_NE(refusal({.choices = 2, .sigmoid = true, .groups = 3, .top_groups = 1}, {}).find("3 groups of 8 experts"),
            std::string::npos);
  EXPECT_NE(refusal({.choices = 3, .sigmoid = true, .groups = 4, .top_groups = 1}, {}).find("among 1 of 4 groups"),
            std::string::npos);
  const std::vector<RowGroup> apart{{.begin = 0, .rows = 2}, {.begin = 3, .rows = 1}};
  const Tensor x = random({4, 2}, 5), w = random({6, 2}, 6);
  EXPECT_NE(support::error_of([&] {
              grouped_gemm(*device_, {.a = x.operand(), .b = w.operand(), .out_dtype = DType::kF32, .holder = anyone()},
                           apart);
            }).find("row 2 is next"),
            std::string::npos);
}

}  // namespace
}  // namespace fp8lab

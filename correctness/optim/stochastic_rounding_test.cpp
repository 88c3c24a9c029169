// Weights without masters that Adam rounds up or down at random: right on average, and the same under every sharding.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "optim/parameters.h"
#include "reference/compare.h"

namespace fp8lab {
namespace {

using namespace optim_test;
using reference::bitwise_equal;

class StochasticRoundingOfAdam : public ::testing::Test {
 protected:
  std::vector<float> trained(const AdamOptions& options, const ParameterSpec& spec, int steps) {
    const auto parameter = optim_test::make_parameter(*device_, spec);
    parameter->first_row = spec.first_row;
    Adam adam({parameter.get()}, options);
    for (int step = 1; step <= steps; ++step) {
      set_gradient(*device_, *parameter, step, spec.first_row);
      adam.step(runtime_);
    }
    return device_->read(parameter->value);
  }

  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Runtime runtime_{.device = *device_, .behaviors = {}, .seed = 11};
  AdamOptions options_{.learning_rate = 1e-4, .stochastic_rounding = true, .seed = 5};
};

// Weights of 1 lie 2^-7 apart upwards and 2^-8 downwards. Equal gradients make the first step -learning_rate for every
// weight, a tiny part of 2^-8: rounding to the nearest loses all of it. Of n weights a share p = rate / 2^-8 moves by
// 2^-8, so the mean move has the deviation 2^-8 sqrt(p (1 - p) / n), and the rate its six-fold on either side.
TEST_F(StochasticRoundingOfAdam, MovesWeightsByTheUpdateOnAverage) {
  const Shape shape{512, 512};
  constexpr double kStep = 0x1p-8;
  for (const bool stochastic : {true, false})
    for (const double rate : {1e-3, 1e-4, 1e-5}) {
      Parameter parameter;
      parameter.name = "w";
      parameter.spec = {shape, DType::kBF16};
      parameter.value = support::make_tensor(*device_, shape, DType::kBF16,
                                             std::vector<float>(static_cast<std::size_t>(shape.numel()), 1.0f));
      parameter.grad = support::make_tensor(*device_, shape, DType::kBF16,
                                            std::vector<float>(static_cast<std::size_t>(shape.numel()), 0.5f));
      Adam adam({&parameter}, {.learning_rate = rate, .stochastic_rounding = stochastic, .seed = 5});
      adam.step(runtime_);
      double moved = 0.0;
      for (const float value : device_->read(parameter.value)) {
        ASSERT_TRUE(value == 1.0f || value == 1.0f - 0x1p-8f) << value;
        moved += 1.0 - static_cast<double>(value);
      }
      const double count = static_cast<double>(shape.numel()), share = rate / kStep;
      const double deviation = kStep * std::sqrt(share * (1.0 - share) / count);
      if (stochastic)
        EXPECT_NEAR(moved / count, rate, 6.0 * deviation) << rate;
      else
        EXPECT_EQ(moved, 0.0) << rate;
    }
}

TEST_F(StochasticRoundingOfAdam, OfShardsIsThatOfTheUnshardedParameter) {
  constexpr int kSteps = 4;
  const ParameterSpec spec{.shape = {37, 23}};
  const std::vector<float> unsharded = trained(options_, spec, kSteps);
  std::vector<float> shards;
  for (const auto& [first, rows] : {std::pair<std::int64_t, std::int64_t>{0, 13}, {13, 13}, {26, 11}}) {
    const std::vector<float> part = trained(options_, {.shape = {rows, 23}, .first_row = first}, kSteps);
    shards.insert(shards.end(), part.begin(), part.end());
  }
  EXPECT_TRUE(bitwise_equal(shards, unsharded));
}

TEST_F(StochasticRoundingOfAdam, DrawsAnewForEverySeedParameterAndStep) {
  const ParameterSpec spec{.shape = {64, 64}};
  const std::vector<float> base = trained(options_, spec, 1);
  EXPECT_TRUE(bitwise_equal(trained(options_, spec, 1), base));
  AdamOptions other = options_;
  other.seed = 6;
  EXPECT_FALSE(bitwise_equal(trained(other, spec, 1), base));
  EXPECT_FALSE(bitwise_equal(trained(options_, {.name = "v", .shape = {64, 64}}, 1), base));
  // Without a gradient's change: the weights that moved in the second step are others than in the first.
  const auto parameter = optim_test::make_parameter(*device_, spec);
  Adam adam({parameter.get()}, options_);
  std::vector<std::vector<float>> values{device_->read(parameter->value)};
  for (int step = 0; step < 2; ++step) {
    set_gradient(*device_, *parameter, 1);
    adam.step(runtime_);
    values.push_back(device_->read(parameter->value));
  }
  std::int64_t first = 0, both = 0;
  for (std::size_t i = 0; i < values[0].size(); ++i) {
    first += values[1][i] != values[0][i];
    both += values[1][i] != values[0][i] && values[2][i] != values[1][i];
  }
  EXPECT_GT(first, 0);
  EXPECT_LT(both, first);
}

TEST_F(StochasticRoundingOfAdam, LeavesWeightsWithMastersToTheNearest) {
  for (const MasterWeights master : {MasterWeights::kF32, MasterWeights::kRemainder}) {
    AdamOptions with = options_, without = options_;
    with.master = without.master = master;
    without.stochastic_rounding = false;
    EXPECT_TRUE(bitwise_equal(trained(with, {}, 3), trained(without, {}, 3)));
  }
}

}  // namespace
}  // namespace fp8lab

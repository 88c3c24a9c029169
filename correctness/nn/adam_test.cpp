// Adam compared with its rule in double precision, step by step and over a full run.

#include "optim/adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "reference/compare.h"
#include "reference/float8_reference.h"
#include "reference/test_data.h"
#include "support/dense.h"

namespace fp8lab {
namespace {

constexpr std::int64_t kElements = 97;
constexpr int kSteps = 20;
constexpr double kUnit = 0x1p-24;

struct State {
  std::vector<double> p;
  std::vector<double> m = std::vector<double>(kElements);
  std::vector<double> v = std::vector<double>(kElements);
};

/// Rounded to FP32 once, as the kernel receives it.
double in_f32(double x) { return static_cast<double>(static_cast<float>(x)); }

void step(const AdamOptions& options, int number, const std::vector<double>& grad, State& state) {
  const double beta1 = options.beta1, beta2 = options.beta2;
  const double correction1 = 1.0 - std::pow(beta1, number), correction2 = 1.0 - std::pow(beta2, number);
  const double rate = in_f32(options.learning_rate), decay = in_f32(options.weight_decay);
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const double g = options.decoupled_decay ? grad[i] : grad[i] + decay * state.p[i];
    state.m[i] = beta1 * state.m[i] + (1.0 - beta1) * g;
    state.v[i] = beta2 * state.v[i] + (1.0 - beta2) * g * g;
    const double move = state.m[i] / correction1 / (std::sqrt(state.v[i] / correction2) + options.epsilon);
    state.p[i] -= rate * (move + (options.decoupled_decay ? decay * state.p[i] : 0.0));
  }
}

struct Case {
  const char* name;
  DType dtype;
  double weight_decay;
  bool decoupled;
};

class AdamTest : public ::testing::TestWithParam<Case> {
 protected:
  AdamTest() {
    parameter_.name = "w";
    parameter_.value = support::make_tensor(*device_, {kElements}, GetParam().dtype, values(1, 0.5));
  }
  static std::vector<float> values(std::uint64_t seed, double deviation) {
    return reference::gaussian_values(kElements, seed, deviation);
  }
  /// Gradients over four orders of magnitude, some of them zero.
  std::vector<double> next_gradient(int number) {
    std::vector<float> grad = values(static_cast<std::uint64_t>(100 + number), 1.0);
    for (std::size_t i = 0; i < grad.size(); ++i)
      grad[i] = i % 7 == 0 ? 0.0f : grad[i] * static_cast<float>(std::pow(10.0, -static_cast<double>(i % 5)));
    parameter_.grad = support::make_tensor(*device_, {kElements}, GetParam().dtype, grad);
    return support::read(*device_, parameter_.grad);
  }
  std::vector<double> parameter() { return support::read(*device_, parameter_.value); }
  double rounding() const { return GetParam().dtype == DType::kBF16 ? 0x1p-8 : kUnit; }

  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Runtime runtime_{.device = *device_, .behaviors = {}};
  Parameter parameter_;
  AdamOptions options_{
      .learning_rate = 1e-2, .weight_decay = GetParam().weight_decay, .decoupled_decay = GetParam().decoupled};
};

// Each step is judged from the device's own parameter of the step before, so only one rounding to its type adds up. In
// FP32 the subtraction rounds once, and the move is a dozen operations deep, three of which the moments repeat in every
// step.
TEST_P(AdamTest, EachStepFollowsTheRule) {
  Adam adam({&parameter_}, options_);
  State state{parameter()};
  for (int number = 1; number <= kSteps; ++number) {
    const std::vector<double> before = state.p;
    step(options_, number, next_gradient(number), state);
    adam.step(runtime_);
    const std::vector<double> actual = parameter();
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double moved = std::fabs(state.p[i] - before[i]);
      const double bound = rounding() * std::fabs(state.p[i]) + kUnit * (2.0 * std::fabs(before[i]) + 64.0 * moved);
      ASSERT_LE(std::fabs(actual[i] - state.p[i]), bound) << "step " << number << ", element " << i;
    }
    state.p = actual;
  }
  EXPECT_EQ(adam.steps(), kSteps);
}

// The bound refuses a rule without bias correction.
TEST_P(AdamTest, RuleWithoutBiasCorrectionIsRefused) {
  Adam adam({&parameter_}, options_);
  State state{parameter()};
  const std::vector<double> before = state.p;
  step(options_, 1000000, next_gradient(1), state);
  adam.step(runtime_);
  EXPECT_FALSE(reference::all_close(parameter(), state.p, {.atol = 1e-3 * options_.learning_rate, .rtol = rounding()}));
}

TEST_P(AdamTest, ParameterWithoutAGradientStays) {
  const std::vector<double> before = parameter();
  Adam adam({&parameter_}, options_);
  adam.step(runtime_);
  EXPECT_EQ(parameter(), before);
  next_gradient(1);
  adam.step(runtime_);
  EXPECT_NE(parameter(), before);
  EXPECT_EQ(adam.steps(), 2);
}

TEST_P(AdamTest, AllocatesTwoMomentsOnceAndNothingAfter) {
  Adam adam({&parameter_}, options_);
  next_gradient(1);
  const std::int64_t before = device_->memory().allocations();
  adam.step(runtime_);
  EXPECT_EQ(device_->memory().allocations(), before + 2);
  EXPECT_EQ(device_->ledger().by_kind().at("optimizer state"), 2 * 4 * kElements);
  adam.step(runtime_);
  EXPECT_EQ(device_->memory().allocations(), before + 2);
}

INSTANTIATE_TEST_SUITE_P(Types, AdamTest,
                         ::testing::Values(Case{"f32", DType::kF32, 0.0, true},
                                           Case{"f32_adamw", DType::kF32, 0.1, true},
                                           Case{"f32_l2", DType::kF32, 0.1, false},
                                           Case{"bf16", DType::kBF16, 0.0, true},
                                           Case{"bf16_adamw", DType::kBF16, 0.1, true}),
                         [](const auto& test) { return std::string(test.param.name); });

// Twenty steps without a comparison, so that roundings add up: every step adds one of the parameter and a few of its
// move.
TEST(AdamRun, StaysNearTheDoubleRunOverTwentySteps) {
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}};
  Parameter parameter;
  parameter.name = "w";
  parameter.value =
      support::make_tensor(*device, {kElements}, DType::kF32, reference::gaussian_values(kElements, 1, 0.5));
  const AdamOptions options{.learning_rate = 1e-2, .weight_decay = 0.01};
  Adam adam({&parameter}, options);
  State state{support::read(*device, parameter.value)};
  for (int number = 1; number <= kSteps; ++number) {
    parameter.grad = support::make_tensor(*device, {kElements}, DType::kF32,
                                          reference::gaussian_values(kElements, static_cast<std::uint64_t>(number)));
    step(options, number, support::read(*device, parameter.grad), state);
    adam.step(runtime);
  }
  EXPECT_TRUE(reference::all_close(support::read(*device, parameter.value), state.p,
                                   {.atol = kSteps * 16.0 * kUnit, .rtol = kSteps * kUnit}));
}

}  // namespace
}  // namespace fp8lab

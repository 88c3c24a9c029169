// The moments of both Adams, and the steps that follow from them, compared with float64 over many steps and every usual
// beta.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "optim/foreach_optimizers.h"
#include "optim/parameters.h"

namespace fp8lab {
namespace {

using Values = std::vector<double>;
constexpr std::int64_t kElements = 48;
constexpr int kStepsOfMoments = 2000;
constexpr double kUnit = 0x1p-24;
constexpr double kEpsilon = 0x1p-60;

/// A moment in float64, and the allowed error of the same moment in f32.
struct Moment {
  double beta;
  Values value = Values(kElements);
  Values error = Values(kElements);

  /// The roundings of a step: of the weight 1 - beta, of the difference, and of their product, each relative to the new
  /// gradient's part; and of the sum. `value_error` is relative: a square is already rounded.
  void take(std::size_t i, double to, double value_error) {
    const double weight = 1.0 - beta;
    const double step = weight * (3.0 * kUnit * std::fabs(to - value[i]) + value_error * std::fabs(to));
    value[i] = beta * value[i] + weight * to;
    error[i] = beta * error[i] + (step + kUnit * std::fabs(value[i])) * (1.0 + 0x1p-10);
  }
  /// The average without the zeros that it started from.
  double corrected(std::size_t i, int step) const { return value[i] / (1.0 - std::pow(beta, step)); }
};

/// Constant, random, growing over eight orders of magnitude, and mostly zero.
std::vector<float> gradient_of(int step) {
  std::vector<float> gradient = reference::gaussian_values(kElements, static_cast<std::uint64_t>(step));
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    if (i % 4 == 0) gradient[i] = 1.0f;
    if (i % 4 == 1) gradient[i] *= std::pow(10.0f, 8.0f * static_cast<float>(step) / kStepsOfMoments - 4.0f);
    if (i % 4 == 2 && step % 7 != 1) gradient[i] = 0.0f;
  }
  return gradient;
}

struct Betas {
  double beta1;
  double beta2;
};

class Moments : public ::testing::TestWithParam<Betas> {
 protected:
  using Check = std::function<void(int step)>;

  /// Steps on random gradients; `check` examines the steps in which the parameter started from zero.
  template <class Optimizer>
  void run(Optimizer& optimizer, const Check& check) {
    parameter_->grad = device_->allocate({Shape{kElements}, DType::kF32}, support::anyone(*device_));
    for (int step = 1; step <= kStepsOfMoments; ++step) {
      const std::vector<float> gradient = gradient_of(step);
      device_->write(parameter_->grad, gradient);
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const auto g = static_cast<double>(gradient[i]);
        mean_.take(i, g, 0.0);
        square_.take(i, g * g, kUnit);
      }
      const bool checks = step <= 20 || step % 100 == 0;
      if (checks) device_->write(parameter_->value, std::vector<float>(kElements));
      optimizer.step(runtime_);
      if (checks) check(step);
      if (HasFailure()) return;
    }
  }
  void expect_within(const Values& actual, const Moment& moment, int step) {
    for (std::size_t i = 0; i < kElements; ++i)
      ASSERT_LE(std::fabs(actual[i] - moment.value[i]), moment.error[i]) << "step " << step << ", element " << i;
  }
  /// After a step from zero at a learning rate of 1 the parameter is -m / (sqrt(v) + epsilon), with both corrections.
  /// Each correction adds the rounding of its weight and its own; then follow at most six operations.
  void expect_moved(int step) {
    const Values moved = support::read(*device_, parameter_->value);
    for (std::size_t i = 0; i < kElements; ++i) {
      const double root = std::sqrt(square_.corrected(i, step));
      const double expected = -mean_.corrected(i, step) / (root + kEpsilon);
      const double mean_error = mean_.error[i] / (1.0 - std::pow(mean_.beta, step)) / (root + kEpsilon);
      const double relative = 0.5 * square_.error[i] / square_.value[i] + (2.0 + 1.0 + 6.0) * kUnit;
      ASSERT_LE(std::fabs(moved[i] - expected), (mean_error + relative * std::fabs(expected)) * (1.0 + 0x1p-10))
          << "step " << step << ", element " << i;
    }
  }

  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Runtime runtime_{.device = *device_, .behaviors = {}};
  std::unique_ptr<Parameter> parameter_ =
      optim_test::make_parameter(*device_, {.shape = {kElements}, .dtype = DType::kF32});
  AdamOptions options_{.learning_rate = 1.0, .beta1 = GetParam().beta1, .beta2 = GetParam().beta2, .epsilon = kEpsilon};
  Moment mean_{.beta = options_.beta1};
  Moment square_{.beta = options_.beta2};
};

TEST_P(Moments, OfAdamAreWithinTheirRoundingsOfFloat64) {
  Adam adam({parameter_.get()}, options_);
  run(adam, [&](int step) {
    expect_within(support::read(*device_, adam.state().front().exp_avg), mean_, step);
    expect_within(support::read(*device_, adam.state().front().exp_avg_sq), square_, step);
  });
}

TEST_P(Moments, MoveAdamsParameterAsInFloat64) {
  Adam adam({parameter_.get()}, options_);
  run(adam, [&](int step) { expect_moved(step); });
}

TEST_P(Moments, MoveForeachAdamsParameterAsInFloat64) {
  ForeachAdam adam({parameter_.get()}, options_);
  run(adam, [&](int step) { expect_moved(step); });
}

INSTANTIATE_TEST_SUITE_P(Betas, Moments,
                         ::testing::Values(Betas{0.9, 0.9}, Betas{0.9, 0.95}, Betas{0.9, 0.99}, Betas{0.9, 0.999},
                                           Betas{0.9, 0.9999}, Betas{0.9, 0.99999}, Betas{0.0, 0.999}, Betas{0.3, 0.4},
                                           Betas{0.99, 0.99}, Betas{0.999, 0.99999}),
                         [](const auto& test) {
                           const auto digits = [](double beta) { return std::to_string(std::lround(beta * 1e5)); };
                           return digits(test.param.beta1) + "_" + digits(test.param.beta2);
                         });

// If the square of a gradient overflows, the parameter becomes NaN instead of never moving again.
TEST(OverflowedMoments, MakeTheParameterNanInTheNextStep) {
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}};
  const auto parameter = optim_test::make_parameter(*device, {.shape = {2}, .dtype = DType::kF32});
  Adam adam({parameter.get()}, {});
  for (const float gradient : {1e30f, 1.0f}) {
    parameter->grad = support::make_tensor(*device, {2}, DType::kF32, {gradient, 1.0f});
    adam.step(runtime);
  }
  const Values values = support::read(*device, parameter->value);
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_TRUE(std::isfinite(values[1]));
}

}  // namespace
}  // namespace fp8lab

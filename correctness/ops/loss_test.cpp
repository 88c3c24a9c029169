#include "ops/loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "reference/expected.h"
#include "reference/finite_difference.h"
#include "reference/test_data.h"
#include "support/dense.h"

namespace fp8lab {
namespace {

using reference::Expected;
using reference::kUnit;
using support::make_tensor;
using support::read;
using Values = std::vector<double>;

class Loss : public ::testing::TestWithParam<DType> {
 protected:
  Tensor gaussian(const Shape& shape, std::uint64_t seed) {
    return make_tensor(*device_, shape, GetParam(), reference::gaussian_values(shape.numel(), seed));
  }
  Tensor scalar(float value) { return make_tensor(*device_, {1, 1}, DType::kF32, {value}); }
  HolderId anyone() { return support::anyone(*device_); }
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
};

/// Sums are in double, so the only error is the rounding to FP32; the sums themselves differ by their order.
Expected scalar_result(double value, double magnitude) {
  Expected expected(1);
  expected.value[0] = value;
  expected.error[0] = 1e-12 * magnitude;
  return rounded_to(DType::kF32, expected);
}

double mean_square(const Values& x, const Values& target) {
  double sum = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += (x[i] - target[i]) * (x[i] - target[i]);
  return sum / static_cast<double>(x.size());
}

TEST_P(Loss, SumIsExactUpToItsRounding) {
  const Tensor x = gaussian({33, 2100}, 1);
  double sum = 0.0, magnitude = 0.0;
  for (const double value : read(*device_, x)) {
    sum += value;
    magnitude += std::fabs(value);
  }
  const Tensor loss = sum_loss(*device_, x, anyone());
  EXPECT_EQ(loss.spec().shape, (Shape{1, 1}));
  EXPECT_TRUE(all_within(read(*device_, loss), scalar_result(sum, magnitude)));
  EXPECT_TRUE(refuses_mutations(scalar_result(sum, magnitude)));
  EXPECT_EQ(read(*device_, sum_loss(*device_, x.row_range(0, 0), anyone())), Values{0.0});
}

TEST_P(Loss, GradientOfASumIsTheSameEverywhere) {
  const TensorSpec spec{{5, 7}, GetParam()};
  const Tensor grad = sum_loss_backward(*device_, spec, scalar(0.375f), anyone());
  EXPECT_EQ(grad.spec().shape, spec.shape);
  EXPECT_EQ(read(*device_, grad), Values(35, 0.375));
  EXPECT_EQ(sum_loss_backward(*device_, {{0, 7}, GetParam()}, scalar(1.0f), anyone()).numel(), 0);
}

TEST_P(Loss, MeanSquareEqualsItsDefinition) {
  const Tensor x = gaussian({9, 2100}, 1), target = gaussian({9, 2100}, 2);
  const double loss = mean_square(read(*device_, x), read(*device_, target));
  EXPECT_TRUE(all_within(read(*device_, mse_loss(*device_, x, target, anyone())), scalar_result(loss, loss)));
  EXPECT_TRUE(refuses_mutations(scalar_result(loss, loss)));
}

// Three roundings: the difference, the common factor, their product.
TEST_P(Loss, MeanSquareGradientEqualsTheDerivative) {
  const Tensor x = gaussian({3, 17}, 1), target = gaussian({3, 17}, 2);
  const double grad_loss = 2.5;
  const Values targets = read(*device_, target);
  Expected expected(static_cast<std::size_t>(x.numel()));
  expected.value =
      reference::gradient([&](const Values& at) { return grad_loss * mean_square(at, targets); }, read(*device_, x));
  for (std::size_t i = 0; i < expected.value.size(); ++i)
    expected.error[i] = 3.0 * kUnit * std::fabs(expected.value[i]) + reference::difference_error(10.0);
  expected = rounded_to(GetParam(), expected);
  const Tensor grad = mse_loss_backward(*device_, x, target, scalar(2.5f), anyone());
  EXPECT_TRUE(all_within(read(*device_, grad), expected));
  EXPECT_TRUE(refuses_mutations(expected));
}

TEST_P(Loss, RefusalsNameTheArgumentAndTheRule) {
  const Tensor x = gaussian({2, 3}, 1), y = gaussian({3, 2}, 2), none = gaussian({0, 3}, 3);
  const std::string type(name(GetParam()));
  EXPECT_EQ(support::error_of([&] { mse_loss(*device_, x, y, anyone()); }),
            "mse_loss: x is " + type + " [2, 3] and target is " + type + " [3, 2]; both must have one shape");
  EXPECT_EQ(support::error_of([&] { mse_loss(*device_, none, none, anyone()); }),
            "mse_loss: x is " + type + " [0, 3]; a mean needs at least one element");
  EXPECT_EQ(support::error_of(
                [&] { mse_loss_backward(*device_, x, x, make_tensor(*device_, {2}, DType::kF32, {1, 1}), anyone()); }),
            "mse_loss_backward: grad_loss is f32 [2]; it must have 1 elements, as the loss has");
  EXPECT_EQ(support::error_of([&] { sum_loss_backward(*device_, {{2, 3}, DType::kE4M3}, scalar(1.0f), anyone()); }),
            "sum_loss_backward: x must be f32, f16 or bf16");
  EXPECT_EQ(support::error_of([&] { sum_loss(*device_, {}, anyone()); }),
            "sum_loss: x is absent; it must be an f32, f16 or bf16 tensor");
}

INSTANTIATE_TEST_SUITE_P(Types, Loss, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& instance) { return std::string(name(instance.param)); });

}  // namespace
}  // namespace fp8lab

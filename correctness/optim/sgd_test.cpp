#include <gtest/gtest.h>

#include <cmath>

#include "optim/foreach_optimizers.h"
#include "optim/parameters.h"
#include "reference/compare.h"

namespace fp8lab {
namespace {

using namespace optim_test;
using reference::bitwise_equal;

class SgdStep : public ::testing::TestWithParam<DType> {
 protected:
  std::unique_ptr<Parameter> with_gradient(const Shape& shape) {
    auto parameter = make_parameter(*device_, {.shape = shape, .dtype = GetParam()});
    parameter->grad = support::make_tensor(*device_, shape, DType::kF32, rows_of(2, 1.0, 0, shape));
    return parameter;
  }
  /// Expects p - rate (g + decay p), within a rounding of each of two operations and of the type.
  void expect_step(const std::vector<double>& before, const Parameter& parameter, double rate, double decay) {
    const std::vector<double> after = support::read(*device_, parameter.value);
    const std::vector<float> grad = device_->read(parameter.grad);
    const double stored = GetParam() == DType::kBF16 ? 0x1p-8 : 0x1p-24;
    for (std::size_t i = 0; i < after.size(); ++i) {
      const double g = static_cast<double>(grad[i]), expected = before[i] - rate * (g + decay * before[i]);
      const double largest = std::abs(before[i]) + rate * std::abs(g);
      ASSERT_LE(std::abs(after[i] - expected), stored * std::abs(expected) + 4 * 0x1p-24 * largest) << i;
    }
  }

  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Runtime runtime_{.device = *device_, .behaviors = {}};
};

TEST_P(SgdStep, IsProportionalToTheGradientAndItsDecayToTheParameter) {
  const auto matrix = with_gradient({7, 5}), vector = with_gradient({11});
  const auto untouched = make_parameter(*device_, {.shape = {3, 3}, .dtype = GetParam()});
  for (const bool only_matrices : {false, true})
    for (const double decay : {0.0, 0.5}) {
      Sgd sgd({matrix.get(), vector.get(), untouched.get()},
              {.learning_rate = 100.0, .weight_decay = decay, .decay_only_matrices = only_matrices});
      sgd.set_learning_rate(0.25);
      const std::vector<double> of_matrix = support::read(*device_, matrix->value),
                                of_vector = support::read(*device_, vector->value),
                                of_untouched = support::read(*device_, untouched->value);
      const std::vector<float> grad = device_->read(matrix->grad);
      sgd.step(runtime_);
      expect_step(of_matrix, *matrix, 0.25, decay);
      expect_step(of_vector, *vector, 0.25, only_matrices ? 0.0 : decay);
      EXPECT_EQ(support::read(*device_, untouched->value), of_untouched) << "it has no gradient";
      EXPECT_EQ(device_->read(matrix->grad), grad) << "decay is added to a copy";
    }
}

INSTANTIATE_TEST_SUITE_P(Types, SgdStep, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& one) { return std::string(one.param == DType::kF32 ? "f32" : "bf16"); });

// What a parameter in eight bits becomes is the cast of the step from its dequantized values.
TEST(SgdStepInEightBits, IsCastFromTheDequantizedParameter) {
  const auto device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}};
  const auto parameter = make_parameter(*device, {.recipe = "mxfp8"});
  const Shape shape = parameter->spec.shape;
  parameter->grad = support::make_tensor(*device, shape, DType::kBF16, rows_of(2, 1.0, 0, shape));
  const Tensor values =
      dequantize(*device, parameter->quantized.rowwise_operand(), DType::kBF16, support::anyone(*device));
  std::vector<float> expected = device->read(values);
  const std::vector<float> grad = device->read(parameter->grad);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] -= 0.25f * grad[i];
  Sgd sgd({parameter.get()}, {.learning_rate = 0.25});
  sgd.step(runtime);
  const QuantizedTensor cast =
      quantize(*device, support::make_tensor(*device, shape, DType::kBF16, expected), *parameter->quantizer);
  EXPECT_TRUE(bitwise_equal(all_bytes(*device, parameter->quantized), all_bytes(*device, cast)));
}

}  // namespace
}  // namespace fp8lab

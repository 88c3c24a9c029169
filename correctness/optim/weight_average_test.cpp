// Moving averages of weights, in the weights' formats and in memory of their own.

#include "optim/weight_average.h"

#include <gtest/gtest.h>

#include "optim/adam.h"
#include "optim/parameters.h"
#include "reference/compare.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using namespace optim_test;
using reference::bitwise_equal;

class WeightAverages : public ::testing::TestWithParam<const char*> {
 protected:
  std::vector<float> values(const QuantizedTensor& q) {
    return device_->read(dequantize(*device_, q.rowwise_operand(), DType::kBF16, support::anyone(*device_)));
  }
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Runtime runtime_{.device = *device_, .behaviors = {}};
  std::unique_ptr<Parameter> weight_ = optim_test::make_parameter(*device_, {.recipe = GetParam()});
};

TEST_P(WeightAverages, StartFromTheWeights) {
  WeightAverage average(runtime_, {weight_.get()}, 0.9);
  average.update(runtime_);
  // Rounding to the nominal type changes a per-tensor scale a little; quantized data and values stay.
  EXPECT_TRUE(
      reference::all_close(values(average.quantized(0)), values(weight_->quantized), {.atol = 0.0, .rtol = 0x1p-7}));
}

// Updating the average changes neither the weights, nor their scales, nor their history.
TEST_P(WeightAverages, DoNotChangeTheWeights) {
  WeightAverage average(runtime_, {weight_.get()}, 0.5);
  Adam adam({weight_.get()}, {.learning_rate = 0.1, .master = MasterWeights::kF32});
  for (int step = 1; step <= 3; ++step) {
    set_gradient(*device_, *weight_, step);
    adam.step(runtime_);
    const auto before = all_bytes(*device_, weight_->quantized);
    const Tensor& amax = weight_->quantizer->amax;
    if (amax) fill(*device_, amax, 0.0f);  // as at the start of a step
    average.update(runtime_);
    EXPECT_TRUE(bitwise_equal(all_bytes(*device_, weight_->quantized), before));
    EXPECT_EQ(amax ? device_->read(amax).front() : 0.0f, 0.0f);
  }
}

// Step by step: dequantise both, interpolate, round to the nominal type, cast.
TEST_P(WeightAverages, EqualDequantiseInterpolateAndCast) {
  WeightAverage average(runtime_, {weight_.get()}, 0.75);
  average.update(runtime_);
  Adam adam({weight_.get()}, {.learning_rate = 0.2, .master = MasterWeights::kF32});
  set_gradient(*device_, *weight_, 1);
  adam.step(runtime_);
  std::vector<float> expected = values(average.quantized(0));
  const std::vector<float> weights = values(weight_->quantized);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = expected[i] + 0.25f * (weights[i] - expected[i]);
  average.update(runtime_);
  Quantizer inputs = *weight_->quantizer;
  inputs.amax = {};
  const QuantizedTensor cast_by_hand =
      quantize(*device_, support::make_tensor(*device_, {256, 128}, DType::kBF16, expected), inputs);
  EXPECT_TRUE(bitwise_equal(all_bytes(*device_, average.quantized(0)), all_bytes(*device_, cast_by_hand)));
}
INSTANTIATE_TEST_SUITE_P(Recipes, WeightAverages, ::testing::ValuesIn(support::quantized_recipe_names()),
                         [](const auto& test) { return std::string(test.param); });

TEST(WeightAverage, OfHighPrecisionIsF32) {
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}};
  const auto weight = optim_test::make_parameter(*device, {.shape = {3, 4}});
  WeightAverage average(runtime, {weight.get()}, 0.75);
  average.update(runtime);
  const std::vector<float> first = device->read(weight->value);
  EXPECT_EQ(device->read(average.value(0)), first);
  device->write(weight->value, std::vector<float>(12, 8.0f));
  average.update(runtime);
  const std::vector<float> actual = device->read(average.value(0));
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_EQ(actual[i], first[i] + 0.25f * (8.0f - first[i]));
  EXPECT_THROW(WeightAverage(runtime, {}, 1.0), Error);
}

}  // namespace
}  // namespace fp8lab

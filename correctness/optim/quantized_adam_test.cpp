// Fused Adam over eight-bit weights: bitwise equal to dequantising, stepping in FP32 and casting again.

#include <gtest/gtest.h>

#include <algorithm>

#include "comm/process_groups.h"
#include "fsdp/sharded_parameter.h"
#include "ops/rewrite.h"
#include "optim/parameters.h"
#include "reference/compare.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using namespace optim_test;
using reference::bitwise_equal;

class QuantizedAdam : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Runtime runtime_{.device = *device_, .behaviors = {}, .seed = 11};
  AdamOptions options_{.learning_rate = 1e-2, .weight_decay = 0.01, .master = MasterWeights::kF32};
};

TEST_P(QuantizedAdam, EqualsDequantiseStepAndQuantise) {
  const auto fused = optim_test::make_parameter(*device_, {.recipe = GetParam()});
  Parameter plain;  // an f32 parameter that starts from the dequantized values
  plain.name = "plain";
  plain.value = dequantize(*device_, fused->quantized.rowwise_operand(), DType::kF32, support::anyone(*device_));
  plain.spec = plain.value.spec();
  Adam adam({fused.get()}, options_), f32_adam({&plain}, options_);
  for (int step = 1; step <= 5; ++step) {
    set_gradient(*device_, *fused, step);
    plain.grad = fused->grad;
    if (fused->quantizer->scale) {  // as an update of scales between the steps would
      fill(*device_, fused->quantizer->scale, 50.0f + static_cast<float>(step));
      fill(*device_, fused->quantizer->amax, 0.0f);
    }
    adam.step(runtime_);
    f32_adam.step(runtime_);
    const Tensor rounded = cast(*device_, plain.value, DType::kBF16, support::anyone(*device_));
    Quantizer inputs = *fused->quantizer;
    if (inputs.amax) inputs.amax = support::scalar(*device_, 0.0f);
    const QuantizedTensor expected = quantize(*device_, rounded, inputs);
    EXPECT_TRUE(bitwise_equal(device_->read(adam.state().front().master), device_->read(plain.value)));
    EXPECT_TRUE(bitwise_equal(all_bytes(*device_, fused->quantized), all_bytes(*device_, expected))) << "step " << step;
    if (inputs.amax) {
      EXPECT_TRUE(bitwise_equal(device_->read(fused->quantizer->amax), device_->read(inputs.amax))) << "step " << step;
    }
  }
}

// Without rounding to the nominal type first the two differ: the plain twin, which has such weights, would notice.
TEST_P(QuantizedAdam, WithoutRoundingTheMasterDiffersFromWeightsIn16Bits) {
  const Tensor master = support::make_tensor(*device_, {256, 128}, DType::kF32, rows_of(1, 0.5, 0, {256, 128}));
  const auto direct = optim_test::make_parameter(*device_, {.recipe = GetParam()});
  const auto rounded = optim_test::make_parameter(*device_, {.recipe = GetParam()});
  const Rewrite rewrites[] = {
      {.value = master, .to = &direct->quantized, .quantizer = direct->quantizer.get()},
      {.value = master, .to = &rounded->quantized, .quantizer = rounded->quantizer.get(), .nominal = DType::kBF16}};
  quantize_in_place(*device_, rewrites);
  EXPECT_FALSE(bitwise_equal(all_bytes(*device_, direct->quantized), all_bytes(*device_, rounded->quantized)));
}

// The list of weights that move and the list of those that are cast again have different lengths: each weight must
// still get its own cast.
TEST_P(QuantizedAdam, WeightsWithoutAGradientAreCastFromTheirOwnMaster) {
  const auto weight = [&](std::int64_t first_row) {
    return optim_test::make_parameter(*device_, {.recipe = GetParam(), .first_row = first_row});
  };
  std::vector<std::unique_ptr<Parameter>> together, alone;
  std::vector<Parameter*> list;
  for (const std::int64_t first_row : {0, 1000, 2000, 3000}) {
    together.push_back(weight(first_row));
    alone.push_back(weight(first_row));
    list.push_back(together.back().get());
  }
  Adam adam(list, options_);
  std::vector<std::unique_ptr<Adam>> adams;
  for (const auto& one : alone) adams.push_back(std::make_unique<Adam>(std::vector{one.get()}, options_));
  for (const std::size_t without : {0u, 2u, 3u}) {
    for (std::size_t i = 0; i < alone.size(); ++i)
      for (Parameter* parameter : {together[i].get(), alone[i].get()}) {
        parameter->grad = {};
        if (i != without) set_gradient(*device_, *parameter, static_cast<int>(10 * without + i));
      }
    adam.step(runtime_);
    for (std::size_t i = 0; i < alone.size(); ++i) {
      adams[i]->step(runtime_);
      EXPECT_TRUE(bitwise_equal(all_bytes(*device_, together[i]->quantized), all_bytes(*device_, alone[i]->quantized)))
          << "weight " << i << " beside " << without << ", which has no gradient";
    }
  }
}

TEST_P(QuantizedAdam, NeedsAMaster) {
  const auto parameter = optim_test::make_parameter(*device_, {.name = "layers[3].weight", .recipe = GetParam()});
  const std::string message = support::error_of([&] { Adam({parameter.get()}, {}); });
  EXPECT_NE(message.find("layers[3].weight"), std::string::npos) << message;
  EXPECT_NE(message.find("3 mantissa bits"), std::string::npos) << message;
  // Remainders belong to a 16-bit parameter; this one gets a full copy.
  Adam adam({parameter.get()}, {.master = MasterWeights::kRemainder});
  set_gradient(*device_, *parameter, 1);
  adam.step(runtime_);
  EXPECT_EQ(adam.state().front().master.dtype(), DType::kF32);
}

INSTANTIATE_TEST_SUITE_P(Recipes, QuantizedAdam, ::testing::ValuesIn(support::quantized_recipe_names()),
                         [](const auto& test) { return std::string(test.param); });

// A master starts from the initial values and not from the eight bits; after a write to the weights it starts from
// these.
TEST(MasterSeed, IsTheInitialValueUntilTheWeightsAreWritten) {
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}, .seed = 11};
  const auto parameter = optim_test::make_parameter(*device, {.shape = {64, 32}, .recipe = "current"});
  parameter->init = Init::kNormal;
  initialize(runtime, *parameter, "unsharded", 128);
  const Tensor unsharded = device->allocate({Shape{192, 32}, DType::kBF16}, support::anyone(*device));
  random_fill(*device, unsharded, {.seed = 11, .stream = stream_of("unsharded"), .scale = 0.02f});
  Adam seeded({parameter.get()}, {.master = MasterWeights::kF32});
  seeded.make_state(runtime);
  EXPECT_EQ(device->read(seeded.state().front().master), device->read(unsharded.row_range(128, 64)));
  parameter->initial.reset();
  Adam unseeded({parameter.get()}, {.master = MasterWeights::kF32});
  unseeded.make_state(runtime);
  EXPECT_EQ(
      device->read(unseeded.state().front().master),
      device->read(dequantize(*device, parameter->quantized.rowwise_operand(), DType::kF32, support::anyone(*device))));
}

// For a shard that is made in place, and for one cut out of an existing unsharded parameter.
TEST(MasterSeed, IsTheSliceOfTheUnshardedParameterOnEveryShard) {
  for (const bool deferred : {true, false}) {
    run_ranks("in_process", {.ranks = 3}, [&](ProcessGroup& group) {
      const std::unique_ptr<Device> device = open_host();
      Runtime runtime{.device = *device, .behaviors = {}, .seed = 11};
      const auto unsharded = optim_test::make_parameter(*device, {.shape = {160, 32}, .recipe = "current"});
      unsharded->init = Init::kNormal;
      initialize(runtime, *unsharded, "w", 0);
      const std::vector<float> initial = device->read(initial_values(runtime, *unsharded, support::anyone(*device)));
      if (deferred) unsharded->quantized.clear();
      Mesh mesh(group, {.replicas = 1, .shards = 3});
      ShardedParameter sharded(runtime, *unsharded, mesh);
      Adam adam({unsharded.get()}, {.master = MasterWeights::kF32});
      adam.make_state(runtime);
      const std::int64_t first = 54 * group.rank() * 32;  // ceil(160 / 3) rows each
      const std::vector<float> master = device->read(adam.state().front().master);
      EXPECT_EQ(master.size(), group.rank() == 2 ? 52u * 32u : 54u * 32u);
      EXPECT_TRUE(std::equal(master.begin(), master.end(), initial.begin() + first));
    });
  }
}

}  // namespace
}  // namespace fp8lab

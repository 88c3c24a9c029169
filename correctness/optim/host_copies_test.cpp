// Masters of FP8 weights that start from values kept in host memory, or from the eight bits.

#include <gtest/gtest.h>

#include <string>

#include "nn/build.h"
#include "optim/saved_state_runs.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using namespace optim_test;

class HostCopiesOfMasters : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Parameter> weight(InitialValuesIn initial_in) {
    auto parameter = optim_test::make_parameter(*device_, {.shape = {256, 128}, .recipe = GetParam()});
    parameter->init = Init::kNormal;
    parameter->initial_in = initial_in;
    initialize(runtime_, *parameter, "w", 0);
    return parameter;
  }
  std::vector<float> master_of(Parameter& parameter) {
    Adam adam({&parameter}, kOptions);
    adam.make_state(runtime_);
    return device_->read(adam.state().front().master);
  }
  const HostCopies& copies() { return device_->memory().host_copies(); }

  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Runtime runtime_{.device = *device_, .behaviors = {}, .seed = 11};
};

TEST_P(HostCopiesOfMasters, AreTheValuesThatWereCast) {
  const auto from_seed = weight(InitialValuesIn::kSeed), from_host = weight(InitialValuesIn::kHost);
  EXPECT_EQ(all_bytes(*device_, from_seed->quantized), all_bytes(*device_, from_host->quantized));
  EXPECT_EQ(copies().live_bytes(), 256 * 128 * 2);
  const std::vector<float> expected = master_of(*from_seed);
  for (Parameter* parameter : {from_seed.get(), from_host.get()}) parameter->initial->seed = 12;
  EXPECT_EQ(master_of(*from_host), expected) << "what is kept does not depend on the seed any more";
  EXPECT_NE(master_of(*from_seed), expected);
}

TEST_P(HostCopiesOfMasters, AreFreedByTheFirstStepAndBySavedValues) {
  const auto first = weight(InitialValuesIn::kHost), second = weight(InitialValuesIn::kHost);
  Adam adam({first.get(), second.get()}, kOptions);
  adam.make_state(runtime_);
  EXPECT_EQ(copies().live_bytes(), 2 * 256 * 128 * 2) << "until the weights change, another master could start";
  set_gradient(*device_, *first, 1);
  set_gradient(*device_, *second, 2);
  adam.step(runtime_);
  EXPECT_EQ(copies().live_bytes(), 0);
  EXPECT_EQ(copies().peak_bytes(), 2 * 256 * 128 * 2);
  if (!device_->computes()) return;

  const TemporaryDirectory folder;
  const auto state_of = [](std::vector<Parameter*> parameters, Adam& optimizer) {
    return TrainingState{
        .parameters = parameters, .optimizer = &optimizer, .forward_scales = {}, .backward_scales = {}, .step = 1};
  };
  Adam saved({first.get()}, kOptions);
  saved.make_state(runtime_);
  save_training_state(runtime_, path_of(folder), state_of({first.get()}, saved));
  const auto loaded = weight(InitialValuesIn::kHost);
  Adam resumed({loaded.get()}, kOptions);
  load_training_state(runtime_, path_of(folder), state_of({loaded.get()}, resumed));
  EXPECT_EQ(copies().live_bytes(), 0);
  EXPECT_FALSE(loaded->initial.has_value());
}

// Transformer Engine's default: what is left of the values is what the eight bits hold.
TEST_P(HostCopiesOfMasters, StartFromTheEightBitsWhereTheValuesAreLost) {
  const auto lost = weight(InitialValuesIn::kLost);
  EXPECT_FALSE(lost->initial.has_value());
  EXPECT_EQ(copies().peak_bytes(), 0);
  const std::vector<float> master = master_of(*lost);
  EXPECT_EQ(master, device_->read(dequantize(*device_, lost->quantized.rowwise_operand(), DType::kF32,
                                             support::anyone(*device_))));
  EXPECT_NE(master, master_of(*weight(InitialValuesIn::kSeed)));
}

INSTANTIATE_TEST_SUITE_P(Recipes, HostCopiesOfMasters, ::testing::ValuesIn(support::quantized_recipe_names()),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace fp8lab

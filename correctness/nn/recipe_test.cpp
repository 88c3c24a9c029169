// The effect of quantization on a layer's gradients: visible, and no larger than its products explain; the same on
// every GPU.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "autograd/functions.h"
#include "nn/layer_cases.h"
#include "reference/compare.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using nn_test::Layer;
using support::LayerCase;
using support::LayerRun;
using support::LayerStep;
using support::Values;

bool is_weight(const std::string& name) { return name.size() > 7 && name.substr(name.size() - 7) == ".weight"; }

std::map<std::string, Values> all_gradients(const LayerStep& step) {
  std::map<std::string, Values> gradients = step.gradients;
  gradients["x"] = step.input_gradient;
  return gradients;
}

struct Quantized {
  const char* name;
  const char* layer;
  bool fp8_attention;
  int products;  ///< quantized products, or casts inside attention, on the longest way to the loss and back
};
void PrintTo(const Quantized& layer, std::ostream* out) { *out << layer.name; }

constexpr Quantized kQuantized[] = {
    {"linear", "linear", false, 2},
    {"uneven_grouped_linear", "uneven_grouped_linear", false, 2},
    {"layernorm_linear", "layernorm_linear", false, 2},
    {"gelu_mlp", "gelu_mlp", false, 4},
    {"swiglu_mlp", "swiglu_mlp", false, 4},
    {"attention", "attention", false, 4},
    {"grouped_rotary_attention", "grouped_rotary_attention", false, 4},
    {"fp8_attention", "attention", true, 10},
    {"fp8_grouped_rotary_attention", "grouped_rotary_attention", true, 10},
    {"gpt", "gpt", false, 8},
    {"llama_fused_mlp", "llama_fused_mlp", false, 8},
    {"fp8_gpt_dropout", "gpt_dropout", true, 14},
};

LayerCase case_of(const Quantized& quantized, std::string_view recipe, std::string_view arch) {
  const Layer& layer = nn_test::layer_named(quantized.layer);
  LayerConfig config = nn_test::block_config(layer);
  config.fp8_attention = quantized.fp8_attention;
  LayerCase layer_case = nn_test::make_case(layer, config);
  layer_case.recipe = recipe;
  layer_case.arch = arch;
  layer_case.input_scale = 1.0;
  return layer_case;
}

/// The third step, in which every history has the amaxes of the same tensors in the steps before.
LayerStep settled_step(const Quantized& layer, std::string_view recipe, std::string_view arch) {
  LayerRun run(case_of(layer, recipe, arch));
  run.step();
  run.step();
  return run.step();
}

class RecipeTest : public ::testing::TestWithParam<std::tuple<Quantized, const char*>> {};

/// The range of a gradient's SQNR. Gaussian operands lose 28.5 dB in a product with both in E4M3, 24.55 dB with an E5M2
/// gradient, and the noises of several products add; 2 dB are added on both sides. A weight's gradient is itself a
/// product, so it is no better than one, unless biases give its operands means that add up while noise does not. Other
/// gradients may have little of the noise, but 45 dB would mean that nothing was quantized.
struct Window {
  double floor;
  double ceiling;
};
Window window_of(const Quantized& layer, const Recipe& recipe, const std::string& gradient) {
  const double product = recipe.gradient.dtype == DType::kE5M2 ? 24.55 : 28.5;
  const bool is_product = is_weight(gradient) && !layer_form(nn_test::layer_named(layer.layer).form).bias;
  return {product - 10.0 * std::log10(layer.products) - 2.0, is_product ? product + 1.0 : 45.0};
}

TEST_P(RecipeTest, GradientsHaveTheNoiseOfTheirQuantizedProducts) {
  const auto& [layer, recipe_name] = GetParam();
  const Recipe recipe = make_recipe(recipe_name);
  const auto expected = all_gradients(settled_step(layer, "bf16", "hopper"));
  for (const auto& [name, gradient] : all_gradients(settled_step(layer, recipe_name, "hopper"))) {
    if (nn_test::is_idle(nn_test::layer_named(layer.layer), name)) {
      EXPECT_TRUE(reference::bitwise_equal(gradient, Values(gradient.size()))) << name;
      continue;
    }
    const double sqnr = reference::sqnr_db(expected.at(name), gradient);
    const Window window = window_of(layer, recipe, name);
    EXPECT_GT(sqnr, window.floor) << name;
    EXPECT_LT(sqnr, window.ceiling) << name;
  }
}

TEST_P(RecipeTest, EveryArchComputesTheSameBits) {
  const auto& [layer, recipe_name] = GetParam();
  const LayerStep hopper = settled_step(layer, recipe_name, "hopper");
  const LayerStep blackwell = settled_step(layer, recipe_name, "blackwell");
  EXPECT_EQ(hopper.loss, blackwell.loss);
  EXPECT_TRUE(reference::bitwise_equal(hopper.output, blackwell.output));
  const auto expected = all_gradients(hopper);
  for (const auto& [name, gradient] : all_gradients(blackwell))
    EXPECT_TRUE(reference::bitwise_equal(gradient, expected.at(name))) << name;
}

// The window refuses scales that do not fit: in the first step of delayed scaling there is no history, scales are 1,
// and a small input and small gradients underflow. Two updates of both directions' scales later they fit.
TEST(RecipeWindow, RefusesScalesThatDoNotFit) {
  constexpr Quantized kLinear{"linear", "linear_without_bias", false, 2};
  const auto gradients = [&](std::string_view recipe, int steps) {
    LayerCase layer_case = case_of(kLinear, recipe, "hopper");
    layer_case.input_scale = layer_case.target_scale = 1e-3;
    LayerRun run(layer_case);
    for (int i = 1; i < steps; ++i) run.step();
    return all_gradients(run.step());
  };
  const auto exact = gradients("bf16", 1), first = gradients("delayed", 1), third = gradients("delayed", 3);
  for (const auto& [name, expected] : exact) {
    const Window window = window_of(kLinear, make_recipe("delayed"), name);
    EXPECT_LT(reference::sqnr_db(expected, first.at(name)), window.floor) << name;
    EXPECT_GT(reference::sqnr_db(expected, third.at(name)), window.floor) << name;
  }
}

// Forward's scales are updated at the end of forward; what backward recomputes (P inside attention) must use the old
// ones.
TEST(BackwardScales, AreThoseOfTheForwardPass) {
  const auto gradients = [](const char* recipe, bool scales_move_on) {
    LayerRun run(case_of({"attention", "attention", true, 0}, recipe, "hopper"));
    const LayerConfig config = nn_test::block_config(nn_test::layer_named("attention"));
    const Tensor x =
        run.device().allocate({{config.tokens(), config.hidden}, DType::kF32}, run.runtime().in_flight("x"));
    run.device().write(x, run.input());
    const Variable y = run.model().forward(run.runtime(), {x, nullptr});
    if (scales_move_on) run.model().update_forward_scales(run.runtime());
    run_backward(run.runtime(), mse_loss(run.runtime(), y, x));
    std::vector<Values> all;
    for (const Parameter* parameter : run.model().parameters()) all.push_back(run.device().read(parameter->grad));
    return all;
  };
  for (const char* recipe : {"delayed", "current"}) {
    const auto expected = gradients(recipe, false), actual = gradients(recipe, true);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(reference::bitwise_equal(actual[i], expected[i])) << recipe << ", parameter " << i;
  }
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Quantized, const char*>>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param);
}

INSTANTIATE_TEST_SUITE_P(Layers, RecipeTest,
                         ::testing::Combine(::testing::ValuesIn(kQuantized),
                                            ::testing::ValuesIn(support::quantized_recipe_names())),
                         name_of);

}  // namespace
}  // namespace fp8lab

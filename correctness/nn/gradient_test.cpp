// Full layers compared with their definition in double precision: forward, and every gradient with differences of the
// definition's loss.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/counter_rng.h"
#include "nn/layer_cases.h"
#include "nn/near.h"
#include "reference/compare.h"
#include "reference/finite_difference.h"
#include "reference/layer_reference.h"
#include "reference/test_data.h"

namespace fp8lab {
namespace {

using nn_test::largest;
using nn_test::Layer;
using nn_test::near;
using reference::LayerReference;
using reference::Matrix;
using support::LayerRun;
using support::LayerStep;

std::vector<double> widen(const std::vector<float>& values) { return {values.begin(), values.end()}; }

double norm_of(const std::vector<double>& values) {
  double square = 0;
  for (double value : values) square += value * value;
  return std::sqrt(square);
}

/// The model of a run in double precision, with the parameters that its device holds.
class Definition {
 public:
  Definition(const Layer& layer, const LayerConfig& config, LayerRun& run)
      : layer_(layer), reference_(problem(config), {}, masks(layer, config, run.runtime())) {
    for (const auto& [name, values] : run.parameters()) reference_.parameters()[name] = widen(values);
    x_ = {config.tokens(), config.hidden, widen(run.input())};
    target_ = widen(run.target());
  }

  Matrix forward() const {
    Matrix value = x_;
    for (std::int64_t i = 0; i < layer_.layers; ++i)
      value = reference_.forward(layer_.layer, "layers[" + std::to_string(i) + "]", value);
    return value;
  }
  double loss() const { return mse(forward(), target_); }

  /// The values of a parameter, or of the input as "x".
  std::vector<double>& values(const std::string& name) {
    return name == "x" ? x_.values : reference_.parameters().at(name);
  }

  std::vector<double> gradient(const std::string& name) {
    const std::vector<double> at = values(name);
    const auto result = reference::gradient(
        [&](const std::vector<double>& moved) {
          values(name) = moved;
          return loss();
        },
        at);
    values(name) = at;
    return result;
  }

  double along(const std::string& name, const std::vector<double>& direction) {
    const std::vector<double> at = values(name);
    const double result = reference::directional_derivative(
        [&](const std::vector<double>& moved) {
          values(name) = moved;
          return loss();
        },
        at, direction);
    values(name) = at;
    return result;
  }

 private:
  static reference::LayerProblem problem(const LayerConfig& config) {
    return {.rms_norm = config.form.norm == NormKind::kRmsNorm,
            .swiglu = config.form.activation == ActivationKind::kSwiglu,
            .rope = config.form.rope,
            .heads = config.heads,
            .kv_heads = config.kv_heads,
            .seq = config.seq,
            .batch = config.batch,
            .dropout = static_cast<double>(config.dropout),
            .group_rows = config.group_rows()};
  }

  // An entry is kept if the uniform number of (seed, name and step, global index) is not below the probability. In
  // attention, whose index is the rank's own, the seed differs between ranks.
  static reference::NamedMasks masks(const Layer& layer, const LayerConfig& config, const Runtime& runtime) {
    reference::NamedMasks masks;
    if (config.dropout == 0.0f) return masks;
    const auto first_row = static_cast<std::uint64_t>(runtime.row_offset);
    const auto draw = [&](const std::string& name, std::uint64_t seed, std::uint64_t first, std::int64_t count) {
      const CounterRng rng(seed, stream_of(name) + static_cast<std::uint64_t>(runtime.step));
      for (std::int64_t i = 0; i < count; ++i)
        masks[name].push_back(rng.uniform(first + static_cast<std::uint64_t>(i)) >= config.dropout ? 1 : 0);
    };
    const std::uint64_t first = first_row * static_cast<std::uint64_t>(config.hidden);
    for (std::int64_t i = 0; i < layer.layers; ++i) {
      const std::string name = "layers[" + std::to_string(i) + "]";
      draw(name + ".attention", runtime.seed + first_row, 0, config.batch * config.heads * config.seq * config.seq);
      draw(name + ".residual1", runtime.seed, first, config.tokens() * config.hidden);
      draw(name + ".residual2", runtime.seed, first, config.tokens() * config.hidden);
    }
    return masks;
  }

  Layer layer_;
  LayerReference reference_;
  Matrix x_;
  std::vector<double> target_;
};

/// Gradients of a step by name, the input's as "x".
std::map<std::string, std::vector<double>> gradients_of(const LayerStep& step) {
  std::map<std::string, std::vector<double>> gradients;
  for (const auto& [name, values] : step.gradients) gradients[name] = widen(values);
  gradients["x"] = widen(step.input_gradient);
  return gradients;
}

std::string name_of(const ::testing::TestParamInfo<Layer>& info) { return info.param.name; }

class TinyLayer : public ::testing::TestWithParam<Layer> {
 protected:
  const Layer& layer_ = GetParam();
  const LayerConfig config_ = nn_test::tiny_config(layer_);
  LayerRun run_{nn_test::make_case(layer_, config_)};
  const LayerStep step_ = run_.step();
  Definition definition_{layer_, config_, run_};
  const double output_tolerance_ = nn_test::f32_tolerance(config_, layer_.stored);
  const double gradient_tolerance_ = nn_test::f32_tolerance(config_, nn_test::roundings(layer_));
};

TEST_P(TinyLayer, ForwardEqualsTheDefinition) {
  EXPECT_TRUE(near(widen(step_.output), definition_.forward().values, output_tolerance_));
  EXPECT_NEAR(static_cast<double>(step_.loss), definition_.loss(), 2.0 * output_tolerance_ * definition_.loss());
}

TEST_P(TinyLayer, EveryGradientEqualsTheDefinitions) {
  for (const auto& [name, gradient] : gradients_of(step_))
    EXPECT_TRUE(near(gradient, definition_.gradient(name), gradient_tolerance_)) << name;
}

// The tolerances are tight: with any parameter one percent larger neither the output nor the gradients pass. Norms do
// not depend on the size of x except through their epsilon, so if they come first this also tests epsilon.
TEST_P(TinyLayer, ChangeOfAnyParameterIsRefused) {
  for (const auto& [name, gradient] : gradients_of(step_)) {
    if (nn_test::is_idle(layer_, name)) continue;
    const std::vector<double> before = definition_.values(name);
    for (double& value : definition_.values(name)) value *= 1.01;
    EXPECT_FALSE(near(widen(step_.output), definition_.forward().values, output_tolerance_)) << name;
    EXPECT_FALSE(near(gradient, definition_.gradient(name), gradient_tolerance_)) << name;
    definition_.values(name) = before;
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, TinyLayer, ::testing::ValuesIn(nn_test::kLayers), name_of);

class LargerLayer : public ::testing::TestWithParam<Layer> {};

TEST_P(LargerLayer, DerivativesAlongRandomDirectionsEqualTheDefinitions) {
  const Layer& layer = GetParam();
  LayerConfig config = nn_test::tiny_config(layer);
  config.hidden = 64;
  config.heads = 4;
  config.kv_heads = config.form.rope ? 2 : 4;
  config.ffn = 80;
  config.seq = 40;  // more than one tile of queries
  LayerRun run(nn_test::make_case(layer, config));
  const LayerStep step = run.step();
  Definition definition(layer, config, run);
  const double output_tolerance = nn_test::f32_tolerance(config, layer.stored);
  const double tolerance = nn_test::f32_tolerance(config, nn_test::roundings(layer));
  EXPECT_TRUE(near(widen(step.output), definition.forward().values, output_tolerance));

  std::uint64_t seed = 1;
  for (const auto& [name, gradient] : gradients_of(step)) {
    if (nn_test::is_idle(layer, name)) continue;
    const std::vector<double> direction =
        widen(reference::gaussian_values(static_cast<std::int64_t>(gradient.size()), ++seed));
    double slope = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) slope += gradient[i] * direction[i];
    // The direction is independent of the gradient's error, so the error's part along it has the error's norm as its
    // standard deviation.
    const double bound = 4.0 * tolerance * norm_of(gradient);
    EXPECT_NEAR(slope, definition.along(name, direction), bound) << name;
    EXPECT_GT(std::fabs(slope), bound) << name << ": a gradient of zero would have passed";
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, LargerLayer, ::testing::ValuesIn(nn_test::kLayers), name_of);

// Each rounding to bf16 is noise at -55.6 dB of the rounded value (Gaussian values), and independent noises add. Matrix
// products pass noise on as they pass on the signal; what norms, softmax and differences do to it has 6 dB of room in
// both directions.
class BFloat16Layer : public ::testing::TestWithParam<Layer> {};

TEST_P(BFloat16Layer, GradientsHaveTheErrorOfTheirRoundings) {
  const Layer& layer = GetParam();
  const LayerConfig config = nn_test::tiny_config(layer);
  support::LayerCase layer_case = nn_test::make_case(layer, config, DType::kBF16);
  layer_case.input_scale = 1.0;  // a norm of small rows would amplify their noise
  LayerRun run(layer_case);
  const LayerStep step = run.step();
  Definition definition(layer, config, run);
  const double floor = 55.6 - 10.0 * std::log10(nn_test::roundings(layer)) - 6.0;
  for (const auto& [name, gradient] : gradients_of(step)) {
    if (nn_test::is_idle(layer, name)) continue;
    const double sqnr = reference::sqnr_db(definition.gradient(name), gradient);
    EXPECT_GT(sqnr, floor) << name;
    EXPECT_LT(sqnr, 55.6 + 6.0) << name << ": not rounded to bf16 anywhere";
  }
}

INSTANTIATE_TEST_SUITE_P(Layers, BFloat16Layer, ::testing::ValuesIn(nn_test::kLayers), name_of);

}  // namespace
}  // namespace fp8lab

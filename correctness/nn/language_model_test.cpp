// A language model compared with its definition in double precision: loss and logits, and every gradient, also the
// gradients of tied matrices, with differences of the definition's loss.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "autograd/functions.h"
#include "core/counter_rng.h"
#include "nn/layer_cases.h"
#include "nn/model.h"
#include "nn/near.h"
#include "ops/embedding.h"
#include "reference/compare.h"
#include "reference/finite_difference.h"
#include "reference/layer_reference.h"
#include "reference/test_data.h"
#include "support/test_device.h"

namespace fp8lab {
namespace {

using nn_test::largest;
using nn_test::near;
using reference::LayerReference;
using reference::Matrix;
using Values = std::vector<double>;

constexpr std::int64_t kVocabulary = 11;

struct Case {
  const char* name;
  const char* form;
  bool tied;
  bool positions;
  bool bias;
  float dropout;
};
constexpr Case kCases[] = {{"gpt", "gpt", false, true, true, 0.0f},
                           {"gpt_tied", "gpt", true, true, true, 0.0f},
                           {"gpt_tied_without_bias_with_dropout", "gpt", true, true, false, 0.25f},
                           {"gpt_without_positions", "gpt", false, false, true, 0.25f},
                           {"llama", "llama", false, false, false, 0.0f},
                           {"llama_tied", "llama", true, false, false, 0.0f}};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

LayerConfig config_of(const Case& c) {
  LayerConfig config = nn_test::tiny_config({"", "transformer_layer", c.form, 0, c.dropout});
  config.form.bias = c.bias;
  return config;
}

/// Tokens that occur several times, some in one sequence, and some that do not.
std::vector<std::int32_t> drawn(std::int64_t count, std::uint64_t seed) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<std::int32_t>(6.0 * reference::uniform(seed, static_cast<std::uint64_t>(i))));
  return tokens;
}

/// One forward and backward in FP32.
struct LanguageRun {
  explicit LanguageRun(const Case& c) : config(config_of(c)) {
    Runtime runtime{.device = *device, .behaviors = {}, .seed = 5, .step = 2, .row_offset = 3 * config.tokens()};
    Model model(runtime, make_recipe("bf16"),
                {.config = config,
                 .dtype = DType::kF32,
                 .vocabulary = kVocabulary,
                 .tied_head = c.tied,
                 .learned_positions = c.positions});
    for (Parameter* parameter : model.parameters()) {
      const bool gamma = parameter->name.ends_with(".gamma");
      std::vector<float> values = reference::gaussian_values(parameter->value.numel(), stream_of(parameter->name), 0.4);
      for (float& value : values) value += gamma ? 1.0f : 0.0f;
      device->write(parameter->value, values);
      parameters[parameter->name] = {values.begin(), values.end()};
    }
    const HolderId input = device->holder(HolderKind::kInput);
    const Tensor tokens = make_tokens(*device, ids, kVocabulary, input);
    const Variable output = model.forward(runtime, {tokens, nullptr});
    const std::vector<float> read = device->read(output.value);
    logits = {read.begin(), read.end()};
    const Variable mean = cross_entropy(runtime, output, make_tokens(*device, targets, kVocabulary, input));
    loss = device->read(mean.value).front();
    run_backward(runtime, mean);
    for (const Parameter* parameter : model.parameters()) {
      const std::vector<float> gradient = device->read(parameter->grad);
      gradients[parameter->name] = {gradient.begin(), gradient.end()};
    }
    const CounterRng rng(runtime.seed, stream_of("embedding.dropout") + 2);
    for (std::int64_t i = 0; i < config.tokens() * config.hidden; ++i)
      kept.push_back(rng.uniform(static_cast<std::uint64_t>(runtime.row_offset * config.hidden + i)) >= c.dropout);
    masks = layer_masks(runtime);
  }

  reference::NamedMasks layer_masks(const Runtime& runtime) const {
    reference::NamedMasks out;
    if (config.dropout == 0.0f) return out;
    const auto first_row = static_cast<std::uint64_t>(runtime.row_offset);
    const auto draw = [&](const std::string& name, std::uint64_t seed, std::uint64_t first, std::int64_t count) {
      const CounterRng rng(seed, stream_of(name) + 2);
      for (std::int64_t i = 0; i < count; ++i)
        out[name].push_back(rng.uniform(first + static_cast<std::uint64_t>(i)) >= config.dropout ? 1 : 0);
    };
    draw("layers[0].attention", runtime.seed + first_row, 0, config.batch * config.heads * config.seq * config.seq);
    for (const char* name : {"layers[0].residual1", "layers[0].residual2"})
      draw(name, runtime.seed, first_row * static_cast<std::uint64_t>(config.hidden), config.tokens() * config.hidden);
    return out;
  }

  std::unique_ptr<Device> device = support::open_poisoned_device();
  LayerConfig config;
  std::vector<std::int32_t> ids = drawn(config.tokens(), 1), targets = drawn(config.tokens(), 2);
  std::map<std::string, Values> parameters, gradients;
  std::vector<bool> kept;
  reference::NamedMasks masks;
  Values logits;
  double loss = 0.0;
};

/// The same model in double.
class DefinitionInDouble {
 public:
  DefinitionInDouble(const Case& c, const LanguageRun& run)
      : case_(c),
        run_(run),
        layer_({.rms_norm = run.config.form.norm == NormKind::kRmsNorm,
                .swiglu = run.config.form.activation == ActivationKind::kSwiglu,
                .rope = run.config.form.rope,
                .heads = run.config.heads,
                .kv_heads = run.config.kv_heads,
                .seq = run.config.seq,
                .batch = run.config.batch,
                .dropout = static_cast<double>(c.dropout),
                .group_rows = {}},
               {}, run.masks) {
    for (const auto& [name, values] : run.parameters) layer_.parameters()[name] = values;
    // The reference's layer norms have a beta.
    for (const auto& [name, values] : run.parameters)
      if (const std::string beta = name.substr(0, name.rfind('.')) + ".beta"; name.ends_with(".gamma"))
        layer_.parameters().try_emplace(beta, values.size(), 0.0);
  }

  Values& values(const std::string& name) { return layer_.parameters().at(name); }

  Values logits() const {
    const std::int64_t hidden = run_.config.hidden;
    const auto& table = layer_.parameters().at("embedding.weight");
    Matrix x{run_.config.tokens(), hidden, Values(static_cast<std::size_t>(run_.config.tokens() * hidden))};
    for (std::int64_t i = 0; i < x.rows; ++i)
      for (std::int64_t j = 0; j < hidden; ++j) {
        double& value = x.at(i, j);
        value = table[static_cast<std::size_t>(run_.ids[static_cast<std::size_t>(i)] * hidden + j)];
        if (case_.positions)
          value +=
              layer_.parameters().at("positions.weight")[static_cast<std::size_t>(i / run_.config.batch * hidden + j)];
        value = run_.kept[x.index(i, j)] ? value / (1.0 - static_cast<double>(case_.dropout)) : 0.0;
      }
    const Matrix y = layer_.norm("norm", layer_.forward("transformer_layer", "layers[0]", x));
    const auto& head = layer_.parameters().at(case_.tied ? "embedding.weight" : "head.weight");
    Values out;
    for (std::int64_t i = 0; i < y.rows; ++i)
      for (std::int64_t v = 0; v < kVocabulary; ++v) {
        double sum = 0.0;
        for (std::int64_t j = 0; j < hidden; ++j) sum += y.at(i, j) * head[static_cast<std::size_t>(v * hidden + j)];
        out.push_back(sum);
      }
    return out;
  }

  double loss() const {
    const Values x = logits();
    double total = 0.0;
    for (std::size_t i = 0; i < run_.targets.size(); ++i) {
      double sum = 0.0;
      for (std::size_t v = 0; v < kVocabulary; ++v) sum += std::exp(x[i * kVocabulary + v]);
      total += std::log(sum) - x[i * kVocabulary + static_cast<std::size_t>(run_.targets[i])];
    }
    return total / static_cast<double>(run_.targets.size());
  }

  Values gradient(const std::string& name) {
    const Values at = values(name);
    const Values result = reference::gradient(
        [&](const Values& moved) {
          values(name) = moved;
          return loss();
        },
        at);
    values(name) = at;
    return result;
  }

 private:
  const Case& case_;
  const LanguageRun& run_;
  LayerReference layer_;
};

class LanguageModelOf : public ::testing::TestWithParam<Case> {
 protected:
  LanguageRun run_{GetParam()};
  DefinitionInDouble definition_{GetParam(), run_};
  // A layer stores 12 tensors at most (layer_cases.h); embedding, dropout, norm and logits are four more.
  const double output_tolerance_ = nn_test::f32_tolerance(run_.config, 16);
  const double gradient_tolerance_ = nn_test::f32_tolerance(run_.config, 2 * 16 + 1);
};

TEST_P(LanguageModelOf, LossAndLogitsEqualTheDefinitions) {
  EXPECT_TRUE(near(run_.logits, definition_.logits(), output_tolerance_));
  EXPECT_NEAR(run_.loss, definition_.loss(), 2.0 * output_tolerance_ * largest(run_.logits));
}

TEST_P(LanguageModelOf, EveryGradientEqualsTheDefinitions) {
  EXPECT_EQ(run_.gradients.contains("head.weight"), !GetParam().tied);
  EXPECT_EQ(run_.gradients.contains("norm.beta"), GetParam().bias);
  for (const auto& [name, gradient] : run_.gradients)
    EXPECT_TRUE(near(gradient, definition_.gradient(name), gradient_tolerance_)) << name;
}

// Neither the logits nor the gradients pass with any parameter one percent larger.
TEST_P(LanguageModelOf, ChangeOfAnyParameterIsRefused) {
  for (const auto& [name, gradient] : run_.gradients) {
    const Values before = definition_.values(name);
    for (double& value : definition_.values(name)) value *= 1.01;
    EXPECT_FALSE(near(run_.logits, definition_.logits(), output_tolerance_)) << name;
    EXPECT_FALSE(near(gradient, definition_.gradient(name), gradient_tolerance_)) << name;
    definition_.values(name) = before;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LanguageModelOf, ::testing::ValuesIn(kCases),
                         [](const auto& instance) { return instance.param.name; });

// Deviation of initial values: 0.02 of all matrices or, scaled, less by sqrt(2 layers) of those that add to the stream.
TEST(LanguageModel, ResidualMatricesStartSmallerWhereAsked) {
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}, .seed = 5};
  LayerConfig config = config_of(kCases[0]);
  config.hidden = 64;
  config.ffn = 128;
  for (const bool scaled : {false, true}) {
    Model model(runtime, make_recipe("bf16"),
                {.layers = 2, .config = config, .vocabulary = 50, .init_deviation = 0.03f, .scaled_residuals = scaled});
    for (const Parameter* parameter : model.parameters()) {
      if (!parameter->name.ends_with(".weight")) continue;
      double square = 0.0;
      const std::vector<float> values = device->read(parameter->value);
      for (const float value : values) square += double{value} * double{value};
      const bool residual = parameter->name.ends_with("proj.weight") || parameter->name.ends_with("fc2.weight");
      const double expected = scaled && residual ? 0.03 / 2.0 : 0.03;
      const double spread = 5.0 / std::sqrt(2.0 * static_cast<double>(values.size()));
      EXPECT_NEAR(std::sqrt(square / static_cast<double>(values.size())) / expected, 1.0, spread) << parameter->name;
    }
  }
}

}  // namespace
}  // namespace fp8lab

// Checkpoints of a model that has the same parameters, but other scales or other optimizer state, are refused: they
// would give a layer what belongs to another one.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "optim/saved_state_format.h"
#include "optim/saved_state_runs.h"
#include "support/layer_names.h"

namespace fp8lab {
namespace {

using namespace optim_test;

/// What is saved, and what it is loaded into. Weights are in 16 bits, so that every recipe has the same parameters.
struct ModelKind {
  std::string recipe = "delayed";
  std::optional<std::string> fp8_format{};
  AdamOptions options = kOptions;
  std::int64_t first_plain = 0;
  std::int64_t last_plain = 0;
};

Training training_of(const ModelKind& kind) {
  RecipeOptions options;
  options.fp8_format = kind.fp8_format;
  return {make_recipe(kind.recipe, options),
          kind.options,
          {.layer = "linear",
           .layers = 2,
           .config = small_layer("delayed"),
           .eight_bit_weights = false,
           .first_layers_plain = kind.first_plain,
           .last_layers_plain = kind.last_plain}};
}

/// Amax histories and scales of both passes.
std::vector<std::vector<float>> recipe_state(Training& training) {
  std::vector<std::vector<float>> state;
  const Registry& registry = training.model.registry();
  for (const auto& all : {registry.forward_scales, registry.backward_scales})
    for (const RoleScales* scales : all) {
      state.push_back(training.device->read(scales->delayed()->history()));
      state.push_back(training.device->read(scales->delayed()->scales()));
    }
  return state;
}

struct OtherCase {
  const char* name;
  ModelKind saved;
  ModelKind loaded;
  std::vector<std::string> words;
};

class OtherModels : public ::testing::TestWithParam<OtherCase> {};

TEST_P(OtherModels, AreRefusedUnchanged) {
  const TemporaryDirectory folder;
  Training saved = training_of(GetParam().saved), other = training_of(GetParam().loaded);
  saved.run(2);
  other.run(1);
  save_training_state(saved.runtime, path_of(folder), saved.state());
  const auto weights = other.weights();
  const auto scales = recipe_state(other);
  const std::string message =
      support::error_of([&] { load_training_state(other.runtime, path_of(folder), other.state()); });
  ASSERT_NE(message, "") << "it was loaded";
  for (const std::string& word : GetParam().words)
    EXPECT_NE(message.find(word), std::string::npos) << message << " lacks " << word;
  for (const char* word : {"save-1.rank-0: entry '", "load it"})
    EXPECT_NE(message.find(word), std::string::npos) << message << " lacks " << word;
  EXPECT_EQ(other.weights(), weights);
  EXPECT_EQ(recipe_state(other), scales);
  EXPECT_EQ(other.adam.steps(), 1);
}

TEST_P(OtherModels, LoadWhatTheySavedThemselves) {
  const TemporaryDirectory folder;
  for (const ModelKind& kind : {GetParam().saved, GetParam().loaded}) {
    Training saved = training_of(kind), same = training_of(kind);
    saved.run(2);
    save_training_state(saved.runtime, path_of(folder), saved.state());
    EXPECT_EQ(load_training_state(same.runtime, path_of(folder), same.state()), 2);
    EXPECT_EQ(recipe_state(same), recipe_state(saved));
    EXPECT_EQ(same.weights(), saved.weights());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, OtherModels,
    ::testing::Values(
        OtherCase{"first_and_last_plain", {.first_plain = 1}, {.last_plain = 1}, {"layers[1]", "no such scales"}},
        OtherCase{"all_and_last_plain", {}, {.last_plain = 1}, {"layers[1] forward: ", "no such scales"}},
        OtherCase{"last_plain_and_all", {.last_plain = 1}, {}, {"layers[1] forward: ", "no such entry"}},
        OtherCase{"hybrid_and_e4m3",
                  {.fp8_format = "hybrid"},
                  {.fp8_format = "e4m3"},
                  {"layers[0] backward: ", "for e5m2, the model's for e4m3"}},
        OtherCase{"e4m3_and_hybrid",
                  {.fp8_format = "e4m3"},
                  {.fp8_format = "hybrid"},
                  {"layers[0] backward: ", "for e4m3, the model's for e5m2"}},
        OtherCase{"delayed_and_bf16", {}, {.recipe = "bf16"}, {"layers[0] forward: ", "no such scales"}},
        OtherCase{"bf16_and_delayed", {.recipe = "bf16"}, {}, {"layers[0] forward: ", "no such entry"}},
        OtherCase{"masters_and_none",
                  {},
                  {.options = {.learning_rate = 1e-2}},
                  {"layers[0].weight: master", "keeps no such master"}}),
    [](const auto& test) { return std::string(test.param.name); });

std::vector<std::vector<float>> router_biases(Training& training) {
  std::vector<std::vector<float>> values;
  for (const RouterBiases* biases : training.model.registry().router_biases)
    values.push_back(training.device->read(biases->values()));
  return values;
}

TEST(BiasesOfRouters, AreSavedAndLoaded_AndNotLost) {
  const auto training_with = [](float rate) {
    LayerConfig config = small_layer("bf16");
    config.form = layer_form("llama");
    config.top_k = 2;
    config.sigmoid_router = true;
    config.router_bias_rate = rate;
    return Training(make_recipe("bf16"), kOptions, {.layer = "layernorm_mlp", .layers = 2, .config = config});
  };
  const TemporaryDirectory folder, other;
  Training saved = training_with(0.25f), same = training_with(0.25f), without = training_with(0.0f);
  saved.run(3);
  save_training_state(saved.runtime, path_of(folder), saved.state());
  same.step = load_training_state(same.runtime, path_of(folder), same.state());
  EXPECT_EQ(same.step, 3);
  EXPECT_EQ(router_biases(same), router_biases(saved));
  ASSERT_EQ(router_biases(saved).size(), 2u);
  for (const std::vector<float>& biases : router_biases(saved))
    EXPECT_NE(biases, std::vector<float>(biases.size(), 0.0f));
  EXPECT_EQ(same.run(2), saved.run(2));
  const auto refusal = [](Training& into, const TemporaryDirectory& from) {
    return support::error_of([&] { load_training_state(into.runtime, path_of(from), into.state()); });
  };
  EXPECT_NE(refusal(without, folder).find("layers[0].router: biases': the model has no such scales or biases"),
            std::string::npos)
      << refusal(without, folder);
  without.run(1);
  save_training_state(without.runtime, path_of(other), without.state());
  EXPECT_NE(refusal(same, other).find("layers[0].router: biases"), std::string::npos) << refusal(same, other);
}

// Ranks whose cut keeps a weight in eight bits save a master. Ranks that keep it in 16 bits have to keep it too.
TEST(MastersOfWeightsInAnotherForm, AreNotLost) {
  const TemporaryDirectory folder;
  const auto on_two = [&](const char* recipe, const AdamOptions& options, const auto& work) {
    run_ranks("in_process", {.ranks = 2}, [&](ProcessGroup& group) {
      Rank rank(group, recipe, options.master == MasterWeights::kNone ? Cut{0, 100, 384} : Cut{0, 128, 384}, options);
      work(group, rank);
    });
  };
  on_two("mxfp8", kOptions, [&](ProcessGroup& group, Rank& rank) {
    rank.run(1, 1);
    save_training_state(rank.runtime, path_of(folder), rank.state(), &group);
  });
  on_two("bf16", {.learning_rate = 1e-2}, [&](ProcessGroup& group, Rank& rank) {
    const std::string message =
        support::error_of([&] { load_training_state(rank.runtime, path_of(folder), rank.state(), &group); });
    EXPECT_NE(message.find("entry 'w: master'"), std::string::npos) << message;
    EXPECT_NE(message.find("keeps no such master"), std::string::npos) << message;
  });
}

// Scales are saved by the names of their modules, so no two may have the same.
TEST(EveryLayer, HasScalesOfItsOwnName) {
  for (const char* layer : support::layer_names()) {
    SCOPED_TRACE(layer);
    const TemporaryDirectory folder;
    Training saved("delayed", kOptions, true, layer), loaded("delayed", kOptions, true, layer);
    saved.run(2);
    save_training_state(saved.runtime, path_of(folder), saved.state());
    load_training_state(loaded.runtime, path_of(folder), loaded.state());
    EXPECT_EQ(recipe_state(saved).empty(), layer_row(layer).products == 0) << "a norm casts nothing";
    EXPECT_EQ(recipe_state(loaded), recipe_state(saved));
  }
}

TEST(EntriesOfOneName, AreRefused) {
  const TemporaryDirectory folder;
  SavedEntry entry;
  entry.name = "w: value";
  std::vector<EntryToWrite> entries = {{entry, {}}, {entry, {}}};
  const RankFileRow row = write_rank_file(path_of(folder), "save-1.rank-0", entries);
  const std::string message = support::error_of([&] { RankFile(path_of(folder), row); });
  EXPECT_NE(message.find("entry 'w: value': the file has two of this name"), std::string::npos) << message;
}

}  // namespace
}  // namespace fp8lab

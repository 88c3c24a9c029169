#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "harness/cli/schema/schemas.h"
#include "harness/results/json_schema.h"
#include "harness/scenario/parsed.h"
#include "harness/scenario/scenario.h"
#include "harness/temporary_directory.h"
#include "support/error_of.h"
#include "support/paths.h"

// The scenarios that ship, and rules of recipes and fixes as scenario files see them.
namespace fp8lab {
namespace {

const std::string kDefinitions = paths::kScenarios;

/// The one-line error of a plain scenario with this model and training, and with other keys, each on its line.
std::string error_of(const std::string& model, const std::string& training, const std::string& others = "") {
  const std::string text = "version: 1\nname: p\ntitle: P\nmodel: {" + model + "}\ntraining: {" + training + "}\n" +
                           others + "measure: [memory]\n";
  return support::error_of([&] { plan_cells(parse_scenario(text, "f", bundled_vocabulary()), bundled_vocabulary()); });
}

TEST(Bundled, EveryScenarioIsValidForTheProgramAndForTheSchema) {
  const auto files = find_scenario_files({kDefinitions});
  const LoadedScenarios loaded = load_scenarios(files, bundled_vocabulary());
  for (const ScenarioError& error : loaded.errors) ADD_FAILURE() << error.what();
  EXPECT_GE(loaded.scenarios.size(), 3u);
  const std::string schema = scenario_schema(bundled_vocabulary());
  for (const auto& file : files)
    for (const std::string& violation : sample::yaml_schema_violations(schema, sample::read(file)))
      ADD_FAILURE() << file << ": " << violation;
}

/// The implied least of parity.same_weights_grad_sqnr_db; 0 if nothing is implied.
double floor_of(const std::string& model, const std::string& training, const std::string& subject = "torchao") {
  const std::string text = "version: 1\nname: p\ntitle: P\nsubject: " + subject + "\nmodel: {hidden: 64, seq: 8, " +
                           model + "}\ntraining: {" + training + "}\nmeasure: [parity]\n";
  for (const PlannedCell& cell : plan_cells(parse_scenario(text, "f", bundled_vocabulary()), bundled_vocabulary()))
    for (const Expectation& expectation : cell.expect)
      if (expectation.metric == "parity.same_weights_grad_sqnr_db") return expectation.low;
  return 0.0;
}

TEST(Bundled, GradientsHaveAFloorThatFallsWithTheNumberOfProducts) {
  EXPECT_DOUBLE_EQ(floor_of("layer: linear", "steps: 2, recipe: current"), 17.9) << "24 - 10 log10(2) - 3";
  EXPECT_DOUBLE_EQ(floor_of("layer: layernorm_mlp, layers: 8", "steps: 2, recipe: current"), 5.9) << "32 casts";
  EXPECT_EQ(floor_of("layer: transformer_layer, heads: 2, layers: 64", "steps: 2, recipe: current"), 3);
  EXPECT_DOUBLE_EQ(floor_of("layer: linear", "steps: 4, recipe: delayed"), 14.9);
  EXPECT_EQ(floor_of("layer: linear", "steps: 3, recipe: delayed"), 0) << "scales have no history";
  EXPECT_EQ(floor_of("layer: linear", "steps: 2, recipe: bf16"), 0);
  EXPECT_DOUBLE_EQ(floor_of("layer: linear", "steps: 2, recipe: current", "own"), 17.9);
  EXPECT_DOUBLE_EQ(floor_of("layer: linear", "steps: 20, recipe: current, loss: sum", "own"), 17.9);
  EXPECT_EQ(floor_of("layer: linear", "steps: 21, recipe: current, loss: sum", "own"), 0) << "a sum has no minimum";
  EXPECT_DOUBLE_EQ(floor_of("layer: linear", "steps: 21, recipe: current, loss: mse", "own"), 17.9);
}

TEST(Bundled, EveryFixHasAScenario) {
  const LoadedScenarios loaded = load_scenarios(find_scenario_files({kDefinitions}), bundled_vocabulary());
  std::set<std::string> shown;
  for (const PlannedCell& cell : loaded.cells) shown.insert(cell.config.fix);
  for (const FixTerm& fix : bundled_vocabulary().fixes) EXPECT_TRUE(shown.contains(fix.name)) << fix.name;
}

TEST(Bundled, ShapesThatARecipeRefusesAreRefusedWithItsRule) {
  const std::string odd = error_of("hidden: 48, heads: 1, seq: 32", "recipe: mxfp8");
  EXPECT_NE(odd.find("f:4:9: `model.hidden`: 48: "), std::string::npos) << odd;
  EXPECT_NE(odd.find("write `hidden: 32` or `hidden: 64`"), std::string::npos) << odd;
  EXPECT_NE(odd.find("mxfp8"), std::string::npos) << odd;
  EXPECT_NE(error_of("hidden: 64, heads: 1, seq: 7", "recipe: mxfp8").find("7 x"), std::string::npos);
  EXPECT_NE(error_of("hidden: 100, heads: 1, seq: 128", "recipe: block"), "");
  EXPECT_EQ(error_of("hidden: 48, heads: 1, seq: 7", "recipe: bf16"), "");
}

TEST(Bundled, EverySizeThatARecipeRefusesIsNamedWithItsKeyAndPlace) {
  std::vector<ScenarioError> errors;
  try {
    const std::string text =
        "version: 1\nname: p\ntitle: P\nmodel:\n  hidden: 2048\n  heads: 15\n  ffn: 6145\n  seq: 1047\n  batch: 3\n"
        "training: {recipe: delayed}\nmeasure: [memory]\n";
    plan_cells(parse_scenario(text, "f", bundled_vocabulary()), bundled_vocabulary());
  } catch (const ScenarioError& error) {
    errors = error.others();
    errors.insert(errors.begin(), error);
  }
  const std::vector<std::string> beginnings{"f:6:3: `model.heads`: hidden 2048 is not a multiple",
                                            "f:7:3: `model.ffn`: 6145: layer 'transformer_layer', fc1 weight: ",
                                            "f:8:3: `model.seq x model.batch`: 1047 x 3: layer "};
  ASSERT_EQ(errors.size(), beginnings.size());
  for (std::size_t i = 0; i < errors.size(); ++i)
    EXPECT_EQ(std::string(errors[i].what()).find(beginnings[i]), 0u) << errors[i].what();
  EXPECT_NE(std::string(errors[1].what()).find("write `ffn: 6144` or `ffn: 61"), std::string::npos) << errors[1].what();
}

TEST(Bundled, LayersWithAttentionNeedTheirHeads) {
  const std::string error = error_of("hidden: 2048, seq: 32", "recipe: bf16");
  EXPECT_NE(error.find("f:4:1: `model.heads`: missing; transformer_layer has attention; write `heads: 16`"),
            std::string::npos)
      << error;
  EXPECT_EQ(error_of("layer: layernorm_mlp, hidden: 2048, seq: 32", "recipe: bf16"), "");
  EXPECT_NE(error_of("layer: multihead_attention, hidden: 2048, seq: 32", "recipe: bf16"), "");
}

TEST(Bundled, OptionsWithoutEffectOnARecipeAreRefused) {
  const std::string error = error_of("hidden: 64, heads: 1, seq: 32", "recipe: mxfp8, recipe_options: {margin: 1}");
  EXPECT_NE(error.find("`training.recipe_options.margin` has no effect: recipe mxfp8"), std::string::npos) << error;
}

TEST(Bundled, StepsWhoseBytesCannotBeCountedAreRefused) {
  const std::string large = "hidden: 65536, heads: 1, seq: 1048576";
  EXPECT_EQ(error_of(large, "micro_batches: 1024"), "");
  const std::string error = error_of(large, "micro_batches: 65536");
  EXPECT_NE(error.find("`training.micro_batches`"), std::string::npos) << error;
}

TEST(Bundled, ShardedModelsCacheNoWeights) {
  const std::string model = "hidden: 64, heads: 1, seq: 32", training = "recipe: delayed, cache_weights: true";
  EXPECT_EQ(error_of(model, training), "");
  const std::string error = error_of(model, training, "sharding: fsdp\n");
  EXPECT_NE(error.find("`training.cache_weights`"), std::string::npos) << error;
}

TEST(Bundled, OnlyTheBaselineRecipeDoesNotQuantize) {
  const Vocabulary& words = bundled_vocabulary();
  for (const Term& recipe : words.recipes)
    EXPECT_EQ(words.quantizes(recipe.name), recipe.name != "bf16") << recipe.name;
}

}  // namespace
}  // namespace fp8lab

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/process_groups.h"
#include "harness/cell/sharding_keys.h"
#include "harness/reference/model.h"
#include "harness/train/training_run.h"
#include "support/cells.h"

// Layers that take no gradient, next to the same model that trains all of its layers: what is frozen keeps its bits,
// and the other layers get the same gradients, bit for bit.
namespace fp8lab {
namespace {

struct Trained {
  std::vector<std::string> names;
  TrainingRun::Values values;
};

Trained trained(const CellConfig& cell, ProcessGroup* world) {
  TrainingRun run(cell, {}, make_recipe(cell.training.recipe, cell.training.recipe_options), {.world = world});
  run.keep_values(true);
  run.run();
  return {run.parameter_names(), run.take_values()};
}

/// Compares one rank's first step.
void compare(CellConfig cell, std::int64_t frozen, ProcessGroup* world) {
  const Trained all = trained(cell, world);
  cell.training.frozen_layers = frozen;
  const Trained some = trained(cell, world);
  std::size_t trains = 0;
  for (std::size_t i = 0; i < some.names.size(); ++i) {
    const std::string what = some.names[i] + " under " + cell.training.recipe;
    EXPECT_EQ(some.values.initial_weights[i], all.values.initial_weights[i]) << what;
    if (reference_step::is_frozen(cell, some.names[i])) {
      EXPECT_EQ(some.values.weights[i], some.values.initial_weights[i]) << what << ": it has moved";
      continue;
    }
    ++trains;
    EXPECT_EQ(some.values.gradients[i], all.values.gradients[i]) << what << ": another gradient";
    EXPECT_EQ(some.values.weights[i], all.values.weights[i]) << what << ": another update";
    EXPECT_NE(some.values.weights[i], some.values.initial_weights[i]) << what << ": it has not moved";
  }
  EXPECT_GT(trains, 0U);
  EXPECT_LT(trains, some.names.size());
}

CellConfig three_layers(const std::string& recipe) {
  CellConfig cell;
  cell.model = {.layer = "transformer_layer",
                .form = "llama",
                .layers = 3,
                .hidden = 64,
                .heads = 2,
                .kv_heads = 1,
                .ffn = 96,
                .seq = 32,
                .batch = 1};
  cell.training.recipe = recipe;
  cell.training.optimizer = Optimizer::kAdam;
  cell.training.learning_rate = 0.01;
  cell.training.weight_decay = 0.1;
  cell.training.loss = Loss::kMse;
  cell.training.steps = 1;
  cell.training.micro_batches = 2;
  return cell;
}

CellConfig language_model(const std::string& form) {
  CellConfig cell = three_layers("bf16");
  cell.model.form = form;
  cell.model.kv_heads = 2;
  cell.model.vocabulary = 61;
  cell.training.loss = Loss::kCrossEntropy;
  return cell;
}

TEST(FrozenLayers, KeepTheirBits_AndLeaveTheGradientsOfTheOthers) {
  for (const char* recipe : {"bf16", "current", "mxfp8"})
    for (const std::int64_t frozen : {1, 2}) compare(three_layers(recipe), frozen, nullptr);
  CellConfig cell = three_layers("bf16");
  cell.training.checkpoint = Recompute::kFull;
  cell.model.dropout = 0.1;  // frozen layers drop too
  compare(cell, 1, nullptr);
}

TEST(FrozenLayers, OfALanguageModel_FreezeItsEmbeddingToo) {
  compare(language_model("llama"), 1, nullptr);
  compare(language_model("gpt"), 3, nullptr);  // trains the last norm and the head
  CellConfig tied = language_model("gpt");
  tied.model.head = HeadWeight::kTied;
  compare(tied, 2, nullptr);
}

TEST(FrozenLayers, OverRanks_AreTheSame) {
  for (const bool ahead : {false, true}) {
    CellConfig sharded = three_layers("bf16");
    sharded.ranks = 2;
    sharded.gather_ahead = ahead;
    sharded.reshard_after_forward = ahead;
    CellConfig language = language_model("gpt");
    language.ranks = 2;
    CellConfig replicated = three_layers("bf16");
    replicated.ranks = 2;
    replicated.sharding = Sharded::kDdp;
    for (const CellConfig& cell : {sharded, language, replicated})
      run_ranks("in_process", {.ranks = cell.ranks}, [&](ProcessGroup& world) { compare(cell, 2, &world); });
  }
}

}  // namespace
}  // namespace fp8lab

#include "harness/cli/fit.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "harness/measure/measure.h"
#include "harness/predict/predict.h"

namespace fp8lab {
namespace {

constexpr VocabularySize kNone{};

CellConfig cell(int ranks) {
  CellConfig out;
  out.device = "meta";
  out.ranks = ranks;
  out.model = {.layer = "transformer_layer",
               .form = "llama",
               .layers = 4,
               .hidden = 1024,
               .heads = 8,
               .kv_heads = 2,
               .ffn = 4096,
               .seq = 2048,
               .batch = 2};
  out.training.steps = 2;
  out.training.optimizer = Optimizer::kAdam;
  out.training.master_weights = Master::kF32;
  out.training.recipe = "delayed";
  return out;
}

std::optional<Change> change(const CellConfig& of, double capacity) {
  return change_that_fits(of, kNone, capacity, predict, bundled_vocabulary());
}

TEST(Fit, SizesAreReadWithTheirUnits) {
  EXPECT_EQ(parse_bytes("80GiB"), 80.0 * (1 << 30));
  EXPECT_EQ(parse_bytes("80 GB"), 80e9);
  EXPECT_EQ(parse_bytes("1.5GiB"), 1.5 * (1 << 30));
  EXPECT_EQ(parse_bytes("1024"), 1024.0);
  for (const char* wrong : {"", "GiB", "80GB ", "80 parsecs", "-1GiB", "0", "nan", "infGiB"})
    EXPECT_FALSE(parse_bytes(wrong)) << wrong;
}

TEST(Fit, VocabularyIsTheSumOfItsMatricesTheirStateAndTheLogits) {
  // 1000 x 1024 twice: 2 B of parameter and of gradient, 4 B of master and of each moment. Logits: 8 B for each of
  // 4096 x 1000. Unsharded matrices are gathered by nobody.
  VocabularyBytes bytes = vocabulary_bytes(cell(1), {.tokens = 1000, .tied = false});
  EXPECT_EQ(bytes.standing, 2.0 * 1000 * 1024 * (2 + 2 + 4 + 8));
  EXPECT_EQ(bytes.at_loss, 4096.0 * 1000 * 8);
  // Over 3 ranks rank 0 has 334 rows, and gathers the head and makes its gradient.
  bytes = vocabulary_bytes(cell(3), {.tokens = 1000, .tied = true});
  EXPECT_EQ(bytes.standing, 334.0 * 1024 * 16);
  EXPECT_EQ(bytes.at_loss, 4096.0 * 1000 * 8 + 1000.0 * 1024 * 4);
  EXPECT_EQ(vocabulary_bytes(cell(3), kNone).at_loss, 0);
}

TEST(Fit, NeedIsThePeakThatARunMeasures) {
  for (const int ranks : {1, 4}) {
    CellConfig run = cell(ranks);
    run.measure = {"memory"};
    const Need need = need_of(run, kNone, predict);
    EXPECT_EQ(need.bytes, measure_arm(run, Arm::kAfter).metrics.at("memory.peak_bytes").value);
  }
  EXPECT_EQ(need_of(cell(1), kNone, predict).phase, "backward");
}

TEST(Fit, LargeVocabularyMovesThePeakToTheLoss) {
  const Need need = need_of(cell(4), {.tokens = 500000, .tied = false}, predict);
  EXPECT_EQ(need.phase, "loss");
  EXPECT_GT(need.bytes, 4096.0 * 500000 * 8);
}

TEST(Fit, HoldersOfThePeakAddUpToIt) {
  double sum = 0;
  const auto kinds = peak_by_kind(cell(4), measure_arm);
  for (const auto& [kind, bytes] : kinds) sum += bytes;
  EXPECT_EQ(sum, need_of(cell(4), kNone, predict).bytes);
  EXPECT_EQ(kinds.front().first, "saved for backward");
}

TEST(Fit, CheapestChangeThatSufficesAloneIsTaken) {
  const CellConfig start = cell(4);
  const double all = need_of(start, kNone, predict).bytes;
  CellConfig recomputed = start;
  recomputed.training.checkpoint = Recompute::kFull;
  const double least = need_of(recomputed, kNone, predict).bytes;
  const auto found = change(start, least);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->text, "training.checkpoint: full");
  EXPECT_EQ(found->need.bytes, least);
  EXPECT_EQ(change(start, all - 1)->text, "training.quantized_weights: true") << "it costs less, and suffices here";
}

TEST(Fit, ChangesAreCombinedWhereNoneSufficesAlone_WithoutNeedlessOnes) {
  const CellConfig start = cell(4);
  CellConfig both = start;
  both.training.checkpoint = Recompute::kFull;
  both.model.batch = 1;
  both.training.micro_batches = 2;
  const double least = need_of(both, kNone, predict).bytes;
  const auto found = change(start, least);
  ASSERT_TRUE(found);
  EXPECT_LE(found->need.bytes, least);
  EXPECT_EQ(need_of(found->cell, kNone, predict).bytes, found->need.bytes);
  EXPECT_NE(found->text.find("training.checkpoint: full, "), std::string::npos) << found->text;
  EXPECT_EQ(found->text.find("reshard"), std::string::npos) << "it is so already";
  EXPECT_FALSE(change(start, 1)) << "nothing trains in one byte";
}

TEST(Fit, EveryKnownModelHasAClosedFormUnderEveryRecipe) {
  for (const KnownModel& model : known_models())
    for (const Term& recipe : bundled_vocabulary().recipes) {
      CellConfig known = cell(64);
      known.model.form = std::string(model.form);
      known.model.layers = model.layers;
      known.model.hidden = model.hidden;
      known.model.heads = model.heads;
      known.model.kv_heads = model.kv_heads;
      known.model.ffn = model.ffn;
      known.training.recipe = recipe.name;
      EXPECT_FALSE(bundled_vocabulary().broken_rule(known)) << model.name;
      EXPECT_GT(need_of(known, model.vocabulary, predict).bytes, 0) << model.name << " " << recipe.name;
    }
}

}  // namespace
}  // namespace fp8lab

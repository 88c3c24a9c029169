#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/process_groups.h"
#include "core/check.h"
#include "harness/cell/vocabulary.h"
#include "harness/temporary_directory.h"
#include "harness/train/training_run.h"
#include "optim/learning_rate.h"
#include "support/cells.h"
#include "support/error_of.h"

// Training on text, with a schedule of the learning rate and validations.
namespace fp8lab {
namespace {

TEST(LearningRate, RisesToTheRateAndFallsByACosine) {
  const LearningRate rate{.rate = 1.0, .warmup_steps = 3, .cosine = true, .final_rate = 0.2, .decay_steps = 13};
  EXPECT_DOUBLE_EQ(rate.at(0), 0.25);
  EXPECT_DOUBLE_EQ(rate.at(2), 0.75);
  EXPECT_DOUBLE_EQ(rate.at(3), 1.0);
  EXPECT_DOUBLE_EQ(rate.at(8), 0.6);
  EXPECT_NEAR(rate.at(12), 0.2 + 0.8 * 0.0244717418524, 1e-12);  // (1 + cos(0.9 pi)) / 2
  EXPECT_DOUBLE_EQ(rate.at(13), 0.2);
  EXPECT_DOUBLE_EQ(rate.at(1000000), 0.2);
  const LearningRate constant{.rate = 0.1, .warmup_steps = 1};
  EXPECT_DOUBLE_EQ(constant.at(0), 0.05);
  EXPECT_EQ(constant.at(1), 0.1);
  EXPECT_EQ(constant.at(1000), 0.1);
}

/// A model that reads a text of 1000 letters in which each of eight words follows one other.
class LanguageTraining : public ::testing::Test {
 protected:
  LanguageTraining() {
    const std::string words[] = {"in ", "the ", "first ", "year ", "of ", "a ", "king ", "came "};
    std::string text;
    for (std::size_t i = 0; text.size() < 1000; i = (5 * i + 3) % 8) text += words[i];
    sample::write(folder_ / "text", text);
  }

  CellConfig cell(std::string_view recipe = "bf16") const {
    CellConfig out = support::small_cell(recipe);
    out.model.vocabulary = 256;
    out.training.loss = "cross_entropy";
    out.training.data = "text";
    out.training.corpus = (folder_ / "text").string();
    return out;
  }

  sample::TemporaryDirectory folder_;
};

TEST_F(LanguageTraining, TheModelLearnsWhichTokenComesNext) {
  CellConfig config = cell();
  config.training.steps = 60;
  config.training.learning_rate = 5e-3;
  config.training.warmup_steps = 5;
  config.training.validation_batches = 2;
  config.training.validate_every = 60;
  const support::FinishedRun run(config);
  const std::vector<ValidationLoss>& losses = run.run.validations();
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].step, 0);
  EXPECT_EQ(losses[1].step, 60);
  EXPECT_NEAR(losses[0].loss, std::log(256.0), 0.1);
  // All but the first letters of a window follow from those before them.
  EXPECT_LT(losses[1].loss, 1.0);
}

TEST_F(LanguageTraining, ATextIsKnownByItsBytes) {
  const auto checksum = bundled_vocabulary().text_checksum;
  CellConfig one = cell(), other = cell();
  sample::write(folder_ / "copy", sample::read(folder_ / "text"));
  sample::write(folder_ / "edited", sample::read(folder_ / "text") + ".");
  other.training.corpus = (folder_ / "copy").string();
  EXPECT_EQ(checksum(one).size(), 16u);
  EXPECT_EQ(checksum(one), checksum(other));
  other.training.corpus = (folder_ / "edited").string();
  EXPECT_NE(checksum(one), checksum(other));
  one.training.data = "normal";
  EXPECT_EQ(checksum(one), "");
  // A device of shapes reads no text, so that the default one need not be installed for it.
  other.training.corpus.clear();
  other.device = "meta";
  EXPECT_EQ(checksum(other), "");
  EXPECT_EQ(bundled_vocabulary().lacks(other), "");
}

TEST_F(LanguageTraining, ShapesAloneNeedNoTokensOnTheHost) {
  CellConfig config = cell("mxfp8");
  config.device = "meta";
  config.training.steps = 1;
  config.model.seq = 1 << 20;
  config.model.batch = 1 << 18;
  support::FinishedRun run(config);
  EXPECT_GT(run.mark("end_of_forward").live_bytes, std::int64_t{1} << 40);
}

// Under delayed scaling validation adds to the history of amaxes.
TEST_F(LanguageTraining, ValidationLeavesNoTrace) {
  for (const char* recipe : {"bf16", "current", "block", "mxfp8"})
    for (const bool sharded : {false, true}) {
      CellConfig config = cell(recipe);
      if (sharded) config.sharding = Sharded::kFsdp;
      config.reshard_after_forward = !sharded;
      config.training.validation_batches = 2;
      std::vector<std::vector<float>> losses;
      for (const std::int64_t every : {0, 1}) {
        config.training.validate_every = every;
        run_ranks("in_process", {.ranks = 1}, [&](ProcessGroup& world) {
          TrainingRun run(config, {}, make_recipe(recipe), {.world = &world});
          run.train();
          EXPECT_EQ(run.validations().size(), every == 0 ? 1u : 4u);
          losses.push_back(run.losses());
        });
      }
      EXPECT_EQ(losses[0], losses[1]) << recipe << (sharded ? ", sharded" : "");
    }
}

TEST_F(LanguageTraining, ValidationDropsNothing) {
  for (const char* checkpoint : {"none", "full"}) {
    CellConfig config = cell();
    config.training.steps = 1;
    config.training.validation_batches = 2;
    config.training.checkpoint = checkpoint;
    const support::FinishedRun without(config);
    config.model.dropout = 0.3;
    const support::FinishedRun with(config);
    EXPECT_NE(with.run.losses(), without.run.losses()) << checkpoint;
    EXPECT_EQ(with.run.validations().front().loss, without.run.validations().front().loss) << checkpoint;
  }
}

TEST_F(LanguageTraining, ACorpusThatDoesNotFitTheModelIsAnError) {
  CellConfig config = cell();
  config.training.tokens = "character";
  config.model.vocabulary = 10;
  const std::string error = support::error_of([&] { const support::FinishedRun run(config); });
  EXPECT_NE(error.find("training.corpus: the corpus has"), std::string::npos) << error;
}

}  // namespace
}  // namespace fp8lab

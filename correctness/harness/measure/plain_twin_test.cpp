#include "harness/measure/twin/plain_twin.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "comm/process_groups.h"
#include "harness/cell/sharding_keys.h"
#include "harness/measure/arms.h"
#include "harness/measure/measure.h"
#include "harness/measure/over_ranks.h"
#include "support/cells.h"

// The plain twin: what it lets pass and what it names.
namespace fp8lab {
namespace {

CellConfig cell_over(std::string_view recipe, int ranks, std::int64_t micro_batches, const std::string& mesh = "") {
  CellConfig cell = support::small_cell(recipe);
  cell.ranks = ranks;
  cell.mesh = mesh;
  cell.training.micro_batches = micro_batches;
  cell.training.master_weights = "f32";
  cell.measure = {"parity"};
  return cell;
}

/// Records what a rank computed, changed.
class FaultyRecorder : public StepRecorder {
 public:
  using Change = std::function<void(RecordedStep&)>;
  FaultyRecorder(std::int64_t steps, Change change) : StepRecorder(steps), change_(std::move(change)) {}
  void end_passes(TrainedModel& model, Device& device) override {
    StepRecorder::end_passes(model, device);
    if (steps().size() == 2) change_(present());  // step 1
  }

 private:
  Change change_;
};

/// The twin's figures when `change` alters what rank `rank` computed in step 1.
ArmResult measured(const CellConfig& cell, int rank, const FaultyRecorder::Change& change, double loss_factor = 1.0) {
  ArmResult of_rank_0;
  std::mutex mutex;
  run_ranks("in_process", {.ranks = cell.ranks}, [&](ProcessGroup& world) {
    ProcessGroup* const ranks = has_ranks(cell) ? &world : nullptr;
    FaultyRecorder recorder(plain_twin(cell, Arm::kAfter).steps, [&](RecordedStep& step) {
      if (world.rank() == rank) change(step);
    });
    TrainingRun run(cell, {}, recipe_of(cell, Arm::kAfter), {.world = &world, .watch = &recorder});
    run.train();
    ArmResult result;
    result.losses = mean_by_step(of_all_ranks(ranks, run.losses(), "losses"), run.losses().size());
    if (loss_factor != 1.0) result.losses[1] *= loss_factor;
    measure_plain_twin(cell, Arm::kAfter, run, recorder, run.weights(), ranks, result);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) of_rank_0 = std::move(result);
  });
  return of_rank_0;
}

double faults(const ArmResult& result) { return result.metrics.at("parity.twin_faults").value.value_or(-1.0); }

testing::AssertionResult names(const ArmResult& result, const std::string& text) {
  if (std::ranges::any_of(result.notes, [&](const std::string& note) { return note.find(text) != std::string::npos; }))
    return testing::AssertionSuccess();
  testing::AssertionResult failure = testing::AssertionFailure() << "no note has '" << text << "'";
  for (const std::string& note : result.notes) failure << "\n  " << note;
  return failure;
}

void scale(std::vector<float>& values, float factor) {
  for (float& value : values) value *= factor;
}

TEST(PlainTwin, NamesTheRankWhoseGradientIsHalved) {
  for (const char* recipe : {"bf16", "current", "delayed", "mxfp8"}) {
    const CellConfig cell = cell_over(recipe, 4, 2);
    EXPECT_EQ(faults(measured(cell, 3, [](RecordedStep&) {})), 0.0) << recipe;
    const ArmResult halved = measured(cell, 3, [](RecordedStep& step) { scale(step.gradients[2], 0.5F); });
    EXPECT_GE(faults(halved), 1.0) << recipe;
    EXPECT_TRUE(names(halved, "step 1, farthest in rows of rank 3")) << recipe;
  }
}

TEST(PlainTwin, NamesTheReplicaThatHasAnotherGradient) {
  const CellConfig cell = cell_over("bf16", 4, 1, "2x2");
  EXPECT_EQ(faults(measured(cell, 3, [](RecordedStep&) {})), 0.0);
  const ArmResult other = measured(cell, 3, [](RecordedStep& step) { step.gradients[0][0] *= 2.0F; });
  EXPECT_EQ(faults(other), 1.0);
  EXPECT_TRUE(names(other, "step 1: replica 1 has another one than replica 0"));
}

TEST(PlainTwin, NamesTheMicroBatchWhoseOutputIsAnothers) {
  const CellConfig cell = cell_over("current", 3, 3);
  const ArmResult other = measured(cell, 2, [](RecordedStep& step) { step.outputs[2] = step.outputs[1]; });
  EXPECT_EQ(faults(other), 1.0);
  EXPECT_TRUE(names(other, "output, rank 2, micro-batch 2, step 1: "));
}

TEST(PlainTwin, NamesTheSequenceThatIsReadTwice) {
  const CellConfig cell = cell_over("bf16", 3, 2);
  const ArmResult other = measured(cell, 2, [](RecordedStep& step) { step.inputs[1] = step.inputs[0]; });
  EXPECT_EQ(faults(other), 1.0);
  EXPECT_TRUE(names(other, "rank 2, micro-batch "));
  EXPECT_TRUE(names(other, "step 1: it is the input of sequence 0, rank 2"));
}

TEST(PlainTwin, SeesALossThatLacksAMicroBatch) {
  const ArmResult other = measured(cell_over("bf16", 3, 3), 1, [](RecordedStep&) {}, 2.0 / 3.0);
  EXPECT_EQ(faults(other), 1.0);
  EXPECT_TRUE(names(other, "loss, step 1: "));
}

TEST(PlainTwin, IsBitForBitWhereNothingIsSplit) {
  CellConfig cell = cell_over("delayed", 1, 1);
  cell.training.checkpoint = Recompute::kFull;
  EXPECT_EQ(faults(measured(cell, 0, [](RecordedStep&) {})), 0.0);
  const ArmResult other = measured(cell, 0, [](RecordedStep& step) { step.gradients[1][0] *= 1.0F + 0x1p-7F; });
  EXPECT_TRUE(names(other, "1 of ")) << "one value by one bit";
  // The next step starts from this gradient, and has no fault of its own.
  EXPECT_FALSE(names(other, "step 2"));
}

TEST(PlainTwin, IsAbsentWhereACellIsPlainOrTooLarge) {
  CellConfig cell = cell_over("bf16", 1, 1);
  EXPECT_NE(why_no_plain_twin(cell, Arm::kAfter).find("the cell itself is plain"), std::string::npos);
  cell.ranks = 2;
  EXPECT_EQ(why_no_plain_twin(cell, Arm::kAfter), "");
  EXPECT_NE(why_no_plain_twin(cell, Arm::kBefore), "");
  cell.model.hidden = 1 << 14;
  EXPECT_NE(why_no_plain_twin(cell, Arm::kAfter).find("multiplications"), std::string::npos);
}

TEST(PlainTwin, KeepsScheduleSeedAndData) {
  CellConfig cell = cell_over("mxfp8", 4, 2, "2x2");
  cell.training.steps = 9;
  cell.training.validation_batches = 2;
  const PlainTwin twin = plain_twin(cell, Arm::kAfter);
  EXPECT_EQ(twin.joined, 8);
  EXPECT_EQ(twin.steps, 4);
  EXPECT_EQ(twin.cell.model.batch, 8 * cell.model.batch);
  EXPECT_EQ(twin.cell.training.validation_batches, 1) << "8 batches of two on four ranks each";
  EXPECT_FALSE(has_ranks(twin.cell));
}

// Shapes and meshes that nothing was tuned to: odd heads, one key head for five, uneven rows, ranks that outnumber
// them.
TEST(PlainTwin, HasNoFalseAlarmInRandomCells) {
  std::mt19937 generator(20261127);
  const auto one_of = [&](auto list) { return *(list.begin() + generator() % list.size()); };
  for (int i = 0; i < 24; ++i) {
    CellConfig cell = cell_over(one_of(std::vector<const char*>{"bf16", "delayed", "current", "mxfp8"}),
                                one_of(std::vector{1, 2, 3, 4, 5}), one_of(std::vector{1, 2, 3}));
    const auto [heads, kv_heads] = one_of(std::vector<std::pair<int, int>>{{3, 1}, {5, 1}, {4, 2}, {2, 2}, {6, 3}});
    cell.model.form = one_of(std::vector<const char*>{"gpt", "llama"});
    cell.model.heads = heads;
    cell.model.kv_heads = kv_heads;
    cell.model.hidden = 32 * heads;
    cell.model.ffn = one_of(std::vector{32, 96, 160});
    cell.model.seq = 32 * one_of(std::vector{1, 2});
    cell.model.batch = one_of(std::vector{1, 2});
    cell.model.layers = one_of(std::vector{1, 2, 3});
    cell.training.quantized_weights = one_of(std::vector{false, true});
    cell.training.checkpoint =
        one_of(std::vector{Recompute::kNone, Recompute::kFull, Recompute::kSelective, Recompute::kSelectiveAlternate});
    cell.training.seed = generator();
    for (const Arm arm : {Arm::kAfter, Arm::kBf16}) {
      const ArmResult result = measure_arm(cell, arm);
      const MetricValue& found = result.metrics.at("parity.twin_faults");
      if (!found.value) continue;
      EXPECT_EQ(*found.value, 0.0) << cell.training.recipe << " ranks " << cell.ranks << " micro-batches "
                                   << cell.training.micro_batches << " heads " << heads << ":" << kv_heads << " "
                                   << found.reason;
    }
  }
}

}  // namespace
}  // namespace fp8lab

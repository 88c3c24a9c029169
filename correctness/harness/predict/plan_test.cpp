#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "harness/cli/plan_tables.h"
#include "harness/cli/planned.h"

// What a model has beside its layers, by hand; what holds a peak; and the changes that make a cell fit.
namespace fp8lab {
namespace {

constexpr std::int64_t kTokens = 128, kHidden = 64, kVocabulary = 1 << 20;
constexpr std::int64_t kElements = 2 * kVocabulary * kHidden + kHidden;  // embedding, head and the norm's gamma

CellConfig small() {
  CellConfig cell;
  cell.device = "meta";
  cell.model = {.form = "llama", .layers = 2, .hidden = kHidden, .heads = 2, .ffn = 128, .seq = kTokens};
  return cell;
}

std::int64_t difference(const CellConfig& cell, const std::string& metric, std::int64_t chunks = 1) {
  const LanguageModel model{kVocabulary, chunks};
  return static_cast<std::int64_t>(estimate(cell, Arm::kAfter, &model).figures.at(metric) -
                                   estimate(cell, Arm::kAfter).figures.at(metric));
}

std::int64_t held(const Estimate& estimate, std::string_view owner) {
  for (const auto& [name, bytes] : estimate.peak_by_owner)
    if (name == owner) return bytes;
  return 0;
}

TEST(LanguageModel, EmbeddingAndHeadHaveParametersGradientsAndOptimizerState) {
  CellConfig cell = small();
  EXPECT_EQ(difference(cell, "memory.weight_bytes"), 2 * kElements);
  EXPECT_EQ(difference(cell, "memory.end_of_backward_bytes"), 4 * kElements + 16 * kTokens) << "with token ids, labels";
  cell.training.optimizer = Optimizer::kAdam;
  cell.training.master_weights = Master::kF32;
  EXPECT_EQ(difference(cell, "memory.end_of_step_bytes"), (2 + 4 + 2 * 4) * kElements);
}

TEST(LanguageModel, ShardedOverRanksItIsGatheredTwiceAndReducedOnce) {
  CellConfig cell = small();
  cell.ranks = 4;
  EXPECT_EQ(difference(cell, "memory.weight_bytes"), 2 * kElements / 4);
  EXPECT_EQ(difference(cell, "traffic.all_gather_bytes"), 2 * 2 * kElements);
  EXPECT_EQ(difference(cell, "traffic.reduce_scatter_bytes"), 2 * kElements);
  EXPECT_EQ(difference(cell, "traffic.collectives"), 2 * 3) << "two groups of parameters";
  cell.reshard_after_forward = false;
  EXPECT_EQ(difference(cell, "traffic.all_gather_bytes"), 2 * kElements);
}

TEST(LanguageModel, LogitsPeakInTheBackwardOfTheLoss) {
  const CellConfig cell = small();
  const LanguageModel model{kVocabulary, 1};
  const Estimate estimated = estimate(cell, Arm::kAfter, &model);
  const auto before = static_cast<std::int64_t>(estimate(cell, Arm::kAfter).figures.at("memory.end_of_forward_bytes"));
  // Log-probabilities, their gradient and that of the FP32 logits; what the norm saves; the gradient of the loss.
  const std::int64_t logits = 3 * 4 * kTokens * kVocabulary;
  const std::int64_t norm = 4 * kTokens + 2 * kTokens * kHidden;
  EXPECT_EQ(estimated.figures.at("memory.peak_bytes"),
            static_cast<double>(before + 2 * kElements + 16 * kTokens + norm + logits + 4));
  EXPECT_EQ(estimated.peak_phase, "backward");
  EXPECT_EQ(held(estimated, "logits and their gradients"), logits);
  EXPECT_EQ(held(estimated, "parameters"), estimated.figures.at("memory.weight_bytes"));
}

TEST(LanguageModel, LossInPiecesHoldsTheLogitsOfOnePiece) {
  const LanguageModel model{kVocabulary, 4};
  const Estimate estimated = estimate(small(), Arm::kAfter, &model);
  EXPECT_EQ(estimated.peak_phase, "forward");
  EXPECT_EQ(held(estimated, "logits and their gradients"), 3 * 4 * (kTokens / 4) * kVocabulary);
  EXPECT_EQ(held(estimated, "gradients"), 2 * kVocabulary * kHidden) << "the head's, from the first piece on";
  // At the end nothing differs.
  EXPECT_EQ(difference(small(), "memory.end_of_step_bytes", 4), difference(small(), "memory.end_of_step_bytes"));
}

TEST(KnownModels, HaveTheirPublishedNumberOfParameters) {
  const auto billions = [](const std::string& name) {
    const KnownModel& known = find_model(name);
    const LanguageModel model{known.vocabulary, 1};
    return estimate(known.cell(), Arm::kAfter, &model).figures.at("memory.weight_bytes") / 2 / 1e9;
  };
  EXPECT_NEAR(billions("llama2-7b"), 6.738, 0.001);
  EXPECT_NEAR(billions("llama2-13b"), 13.016, 0.001);
  EXPECT_NEAR(billions("llama2-70b"), 68.977, 0.001);
  EXPECT_NEAR(billions("mistral-7b"), 7.242, 0.001);
  EXPECT_NEAR(billions("llama3-8b"), 8.030, 0.001);
  EXPECT_NEAR(billions("llama3-70b"), 70.554, 0.001);
  EXPECT_NEAR(billions("llama3-405b"), 405.85, 0.01);
}

TEST(Fits, TheCheapestChangeComesFirstAndNoneContainsAnother) {
  const KnownModel& known = find_model("llama3-70b");
  const LanguageModel model{known.vocabulary, 1};
  CellConfig cell = known.cell();
  cell.ranks = 64;
  cell.training.recipe = "delayed";
  const auto any = [](const CellConfig&) { return true; };
  const std::vector<Fit> fits = cheapest_fits(cell, &model, find_gpu("h100").usable_bytes(), any);
  ASSERT_FALSE(fits.empty());
  ASSERT_EQ(fits[0].changes.size(), 1u);
  EXPECT_EQ(fits[0].changes[0].key, "training.checkpoint");
  cell.training.checkpoint = Recompute::kFull;
  EXPECT_EQ(estimate(cell, Arm::kAfter, &model).figures.at("memory.peak_bytes"), fits[0].peak_bytes);
  EXPECT_TRUE(cheapest_fits(cell, &model, 1, any).empty());
  EXPECT_TRUE(cheapest_fits(cell, &model, std::int64_t{1} << 50, [](const CellConfig&) { return false; }).empty());
}

PlanRequest over(const char* gpu, std::vector<int> ranks, std::vector<std::string> settings = {}) {
  PlanRequest request;
  request.model = "llama3-70b";
  request.gpu = gpu;
  request.ranks = std::move(ranks);
  request.settings = std::move(settings);
  return request;
}

TEST(PlanOfAModel, HasACellForEachRecipeAndNumberOfRanks) {
  const Program program{.build = {},
                        .scenarios_directory = "",
                        .reports_directory = "",
                        .vocabulary = bundled_vocabulary,
                        .measure = {},
                        .predict = {},
                        .estimate = estimate};
  const PlanRequest request = over("h100", {64, 16384}, {"training.checkpoint=full"});
  const Capacity capacity = capacity_of(request);
  const ModelPlan plan = model_plan(request, capacity, bundled_vocabulary());
  EXPECT_EQ(plan.cells.size(), 2u * 7);
  for (const PlannedCell& cell : plan.cells) {
    const Planned planned_cell = planned(cell, capacity.bytes, &plan.model, program);
    ASSERT_EQ(planned_cell.arms.size(), 1u);
    const PlannedArm& arm = planned_cell.arms[0];
    ASSERT_TRUE(arm.spare) << cell.config.id << arm.reason;
    EXPECT_GT(*arm.spare, 0) << cell.config.id;
    EXPECT_FALSE(planned_cell.fails(true));
    std::int64_t sum = 0;
    for (const auto& [owner, bytes] : arm.estimate.peak_by_owner) {
      EXPECT_GT(bytes, 0) << owner;
      sum += bytes;
    }
    EXPECT_EQ(static_cast<double>(sum), arm.estimate.figures.at("memory.peak_bytes"));
  }
  EXPECT_TRUE(
      model_plan(over("a100-80gb", {64}), capacity_of(over("a100-80gb", {64})), bundled_vocabulary()).cells.size() == 1)
      << "an A100 has no FP8";
}

TEST(PlanOfAModel, WrongWordsAreNamedWithTheRemedy) {
  const auto error_of = [](const PlanRequest& request) -> std::string {
    try {
      model_plan(request, capacity_of(request), bundled_vocabulary());
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(error_of(over("h10", {64})).find("Did you mean `h100`?"), std::string::npos) << error_of(over("h10", {64}));
  EXPECT_NE(error_of(over("h100", {64}, {"model.seqq=4"})).find("--set: `model.seqq=4`"), std::string::npos);
  EXPECT_NE(error_of(over("h100", {64}, {"model.seq=no"})).find("model.seq must be an integer"), std::string::npos);
  EXPECT_NE(error_of(over("h100", {64}, {"model.heads=7"})).find("plan: "), std::string::npos);
  EXPECT_EQ(parse_bytes("--capacity", "80GiB"), std::int64_t{80} << 30);
  EXPECT_EQ(parse_bytes("--capacity", "1.5 GB"), 1500000000);
  EXPECT_EQ(parse_bytes("--capacity", "1024"), 1024);
  for (const char* text : {"", "GiB", "80GIB", "-1", "nan", "1e400B", "0"})
    EXPECT_THROW(parse_bytes("--capacity", text), Error) << text;
}

TEST(PlanOfAScenario, ExpectationsAboutPredictedFiguresAreJudged) {
  const Program program{.build = {},
                        .scenarios_directory = "",
                        .reports_directory = "",
                        .vocabulary = bundled_vocabulary,
                        .measure = {},
                        .predict = {},
                        .estimate = estimate};
  PlannedCell cell;
  cell.config = small();
  Expectation limit;
  limit.metric = "memory.peak_bytes";
  limit.comparison = Comparison::kAtMost;
  limit.low = estimate(cell.config, Arm::kAfter).figures.at("memory.peak_bytes");
  Expectation measured = limit;
  measured.metric = "memory.reserved_peak_bytes";
  cell.expect = {limit, measured};
  Planned plan = planned(cell, 0, nullptr, program);
  ASSERT_EQ(plan.gates.size(), 1u) << "what only a run can tell is not judged";
  EXPECT_FALSE(plan.fails(false));
  cell.expect[0].low -= 1;
  EXPECT_TRUE(planned(cell, 0, nullptr, program).fails(false));
  // With less memory than the peak the arm ends out of memory, as a run does.
  Expectation ending;
  ending.comparison = Comparison::kEnds;
  ending.status = "out_of_memory";
  cell.expect = {ending};
  cell.config.capacity = static_cast<std::int64_t>(limit.low);
  EXPECT_TRUE(planned(cell, 0, nullptr, program).fails(false));
  cell.config.capacity -= 1;
  EXPECT_FALSE(planned(cell, 0, nullptr, program).fails(false));
}

}  // namespace
}  // namespace fp8lab

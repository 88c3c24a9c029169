#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/check.h"
#include "harness/cell/metrics.h"
#include "harness/cli/plan/plan_tables.h"
#include "harness/cli/plan/planned.h"
#include "harness/measure/measure.h"
#include "harness/predict/own_program.h"
#include "harness/scenario/rules.h"
#include "support/error_of.h"

// Parts of a model in addition to its layers, by hand; what holds a peak; and the changes that make a cell fit.
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

CellConfig language_model() {
  CellConfig cell = small();
  cell.model.vocabulary = kVocabulary;
  cell.training.loss = Loss::kCrossEntropy;
  return cell;
}

/// A figure of the language model and of its layers only, after `change` to both.
template <class Change>
std::int64_t difference(const std::string& metric, const Change& change) {
  CellConfig with = language_model(), without = small();
  change(with);
  change(without);
  return static_cast<std::int64_t>(estimate(with, Arm::kAfter).figures.at(metric) -
                                   estimate(without, Arm::kAfter).figures.at(metric));
}

std::int64_t held(const Estimate& estimate, std::string_view owner) {
  for (const auto& [name, bytes] : estimate.peak_by_owner)
    if (name == owner) return bytes;
  return 0;
}

TEST(LanguageModel, EmbeddingAndHeadHaveParametersGradientsAndOptimizerState) {
  const auto nothing = [](CellConfig&) {};
  EXPECT_EQ(difference("memory.weight_bytes", nothing), 2 * kElements);
  // Tokens and targets, i32, take the place of x; and no output is kept.
  const std::int64_t stream = 2 * kTokens * kHidden;
  EXPECT_EQ(difference("memory.end_of_backward_bytes", nothing), 4 * kElements + 8 * kTokens - 2 * stream);
  const auto with_adam = [](CellConfig& cell) {
    cell.training.optimizer = Optimizer::kAdam;
    cell.training.master_weights = Master::kF32;
  };
  EXPECT_EQ(difference("memory.end_of_step_bytes", with_adam), (2 + 4 + 2 * 4) * kElements - stream);
  const auto tied = [](CellConfig& cell) { cell.model.head = HeadWeight::kTied; };
  EXPECT_EQ(difference("memory.weight_bytes", tied), 2 * (kElements - kVocabulary * kHidden));
}

TEST(LanguageModel, ShardedOverRanksTheRootIsGatheredOnceAndReducedOnce) {
  for (const bool reshard : {true, false}) {
    const auto sharded = [&](CellConfig& cell) {
      cell.ranks = 4;
      cell.reshard_after_forward = reshard;
    };
    EXPECT_EQ(difference("memory.weight_bytes", sharded), 2 * kElements / 4);
    EXPECT_EQ(difference("traffic.all_gather_bytes", sharded), 2 * kElements);
    EXPECT_EQ(difference("traffic.reduce_scatter_bytes", sharded), 2 * kElements);
    EXPECT_EQ(difference("traffic.collectives", sharded), 2);
  }
}

TEST(LanguageModel, LogitsAreStoredOnceInTheTypeOfTheParameters) {
  const CellConfig cell = language_model();
  const Estimate estimated = estimate(cell, Arm::kAfter);
  // The peak is at the making of the head's gradient: in addition to what forward left, the gradients of the norm's
  // result and of the head. The logarithms of sums and the gradient of the loss are freed by then.
  const double before = estimated.figures.at("memory.end_of_forward_bytes");
  EXPECT_EQ(estimated.figures.at("memory.peak_bytes"),
            before - 4 * kTokens + 2 * kTokens * kHidden + 2 * kVocabulary * kHidden);
  EXPECT_EQ(estimated.peak_phase, "backward");
  EXPECT_EQ(held(estimated, "logits and their gradients"), 2 * kTokens * kVocabulary);
  EXPECT_EQ(held(estimated, "gradients"), 2 * kVocabulary * kHidden);
  EXPECT_EQ(held(estimated, "parameters"), estimated.figures.at("memory.weight_bytes"));
}

// Llama-3 8B over 3 ranks: only QKV, 6144 rows, has shards whose rows are a multiple of MXFP8's 32.
TEST(Estimate, CountsTheWeightsWhoseBlocksShardsWouldCut) {
  CellConfig cell = find_model("llama3-8b").cell();
  cell.model.layers = 2;
  cell.training.quantized_weights = true;
  const auto refused = [&](const char* recipe, int ranks) {
    cell.training.recipe = recipe;
    cell.ranks = ranks;
    const Estimate made = estimate(cell, Arm::kAfter);
    EXPECT_EQ(made.fp8_weights, 8) << recipe;
    return made.refused_weights;
  };
  EXPECT_EQ(refused("mxfp8", 3), 6);
  EXPECT_EQ(refused("mxfp8", 64), 0);
  EXPECT_EQ(refused("block", 64), 8);
  EXPECT_EQ(refused("delayed", 3), 0);
  EXPECT_EQ(estimate(cell, Arm::kBf16).fp8_weights, 0);
}

TEST(Estimate, HasEveryMetricThatIsPredictedAndNoOther) {
  CellConfig cell = find_model("llama3-8b").cell();
  cell.ranks = 8;
  std::vector<std::string> predicted, estimated;
  for (const Metric& metric : metrics())
    if (metric.is_predicted()) predicted.emplace_back(metric.name);
  for (const auto& [name, value] : estimate(cell, Arm::kAfter).figures) estimated.push_back(name);
  std::ranges::sort(predicted);
  EXPECT_EQ(predicted, estimated);
}

TEST(KnownModels, HaveTheirPublishedNumberOfParameters) {
  // The elements of all published weights. GPT-3's are not published; its paper has billions.
  const std::map<std::string_view, std::int64_t> published{
      {"llama2-7b", 6738415616},
      {"llama2-13b", 13015864320},
      {"llama2-70b", 68976648192},
      {"mistral-7b", 7241732096},
      {"mistral-7b-v0.3", 7248023552},
      {"mistral-nemo-12b", 12247782400},
      {"mistral-small-24b", 23572403200},
      {"llama3-8b", 8030261248},
      {"llama3-70b", 70553706496},
      {"llama3-405b", 405853388800},
      {"llama3.1-8b", 8030261248},
      {"llama3.1-70b", 70553706496},
      {"llama3.1-405b", 405853388800},
      {"llama3.2-1b", 1235814400},
      {"llama3.2-3b", 3212749824},
      {"llama3.3-70b", 70553706496},
      {"qwen2.5-0.5b", 494032768},
      {"qwen2.5-1.5b", 1543714304},
      {"qwen2.5-3b", 3085938688},
      {"qwen2.5-7b", 7615616512},
      {"qwen2.5-14b", 14770033664},
      {"qwen2.5-32b", 32763876352},
      {"qwen2.5-72b", 72706203648},
      {"qwen3-0.6b", 596049920},
      {"qwen3-1.7b", 1720574976},
      {"qwen3-4b", 4022468096},
      {"qwen3-8b", 8190735360},
      {"qwen3-14b", 14768307200},
      {"qwen3-32b", 32762123264},
      {"qwen3-30b-a3b", 30532122624},
      {"qwen3-235b-a22b", 235093634560},
      {"mixtral-8x7b", 46702792704},
      {"gemma-2b", 2506172416},
      {"gemma-7b", 8537680896},
      {"gpt-oss-20b", 20914757184},
      {"gpt-oss-120b", 116829156672},
      // Without the module that predicts further tokens (MTP). 58 of its 61 layers have a mixture, whose router has a
      // bias for each of 256 experts.
      {"deepseek-v3", 671026419200},
  };
  for (const KnownModel& model : known_models()) {
    CellConfig in_f32 = model.cell();  // biases of routers are in FP32 always
    in_f32.training.param_dtype = ParamDType::kF32;
    const auto parameters =
        static_cast<std::int64_t>(estimate(in_f32, Arm::kAfter).figures.at("memory.weight_bytes")) / 4;
    const auto found = published.find(model.name);
    if (found != published.end()) {
      EXPECT_EQ(parameters, found->second) << model.name;
    } else {
      const double billions = model.name == "gpt3-6.7b" ? 6.658 : model.name == "gpt3-175b" ? 174.604 : 0.0;
      EXPECT_NEAR(static_cast<double>(parameters) / 1e9, billions, 0.001) << model.name;
    }
    EXPECT_EQ(lacking_for(model.name), "") << model.name;
    const auto rules = broken_rules(model.cell(), bundled_vocabulary());
    EXPECT_TRUE(rules.empty()) << model.name << ": " << rules.front().rule;
  }
}

TEST(KnownModels, WithLayersThatThisProgramLacks_AreRefusedWithTheReason) {
  const auto refusal = [](const char* name) { return support::error_of([&] { find_model(name); }); };
  EXPECT_EQ(refusal("gemma-3-27b"),
            "--model: gemma-3-27b has norms behind attention and MLP, and sliding windows in five of six layers, which "
            "this program's layers lack");
  for (const auto& [name, part] : {std::pair("gemma-2-9b", "caps of logits"),
                                   {"gemma-3-27b", "sliding windows"},
                                   {"qwen2_moe", "a gate of the shared expert"},
                                   {"deepseek-v2", "groups"}})
    EXPECT_NE(refusal(name).find(part), std::string::npos) << refusal(name);
  EXPECT_NE(refusal("qwen3-9b").find("Did you mean `qwen3-"), std::string::npos) << refusal("qwen3-9b");
}

TEST(Fits, TheCheapestChangeComesFirstAndNoneContainsAnother) {
  CellConfig cell = find_model("llama3-70b").cell();
  cell.ranks = 64;
  cell.training.recipe = "delayed";
  const auto any = [](const CellConfig&) { return true; };
  const std::vector<Fit> fits = cheapest_fits(cell, find_gpu("h100").usable_bytes(), any).fits;
  ASSERT_FALSE(fits.empty());
  ASSERT_EQ(fits[0].changes.size(), 1u);
  EXPECT_EQ(fits[0].changes[0].key, "training.checkpoint");
  cell.training.checkpoint = Recompute::kFull;
  EXPECT_EQ(estimate(cell, Arm::kAfter).figures.at("memory.peak_bytes"), fits[0].peak.own);
  EXPECT_TRUE(cheapest_fits(cell, 1, any).fits.empty());
  // Both peaks fit.
  const auto twice = [](const CellConfig& changed) { return std::optional(2 * peaks_of(changed, {}).value().own); };
  const std::vector<Fit> of_both = cheapest_fits(cell, find_gpu("h100").usable_bytes(), any, twice).fits;
  ASSERT_FALSE(of_both.empty());
  for (const Fit& fit : of_both) {
    EXPECT_EQ(fit.peak.torch, 2 * fit.peak.own);
    EXPECT_LE(fit.peak.torch, find_gpu("h100").usable_bytes());
  }
  EXPECT_TRUE(cheapest_fits(cell, std::int64_t{1} << 50, [](const CellConfig&) { return false; }).fits.empty());
}

// The search checks whether the most halvings fit, and tries fewer only if they do.
TEST(Fits, EachHalvingAndEachSplitNeedsLessMemory) {
  for (const char* recipe : {"bf16", "delayed", "block", "mxfp8"})
    for (const Recompute checkpoint : {Recompute::kNone, Recompute::kFull}) {
      CellConfig cell = find_model("llama3-8b").cell();
      cell.ranks = 8;
      cell.training.recipe = recipe;
      cell.training.checkpoint = checkpoint;
      cell.model.batch = 8;
      cell.training.micro_batches = 2;
      PeakBytes before = peaks_of(cell, {}).value();
      for (int doublings = 0; doublings < 6; ++doublings) {
        doublings < 3 ? cell.model.batch /= 2 : cell.context_parallel *= 2;
        cell.training.micro_batches *= 2;
        const PeakBytes peak = peaks_of(cell, {}).value();
        EXPECT_LE(peak.own, before.own) << recipe << ", " << doublings;
        before = peak;
      }
    }
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
  const PlanRequest request = over("h100", {64, 16384}, {"training.checkpoint=full"});
  const Capacity capacity = capacity_of(request);
  const ModelPlan plan = model_plan(request, capacity, bundled_vocabulary());
  EXPECT_EQ(plan.cells.size(), 2u * 7);
  EXPECT_NE(plan.heading.find("master weights f32"), std::string::npos) << plan.heading;
  EXPECT_NE(plan.heading.find("gathered while"), std::string::npos) << plan.heading;
  EXPECT_EQ(model_plan(over("h100", {1, 2}, {"gather_ahead=false"}), capacity, bundled_vocabulary())
                .heading.find("gathered while"),
            std::string::npos);
  for (const PlannedCell& cell : model_plan(over("h100", {1, 2}), capacity, bundled_vocabulary()).cells)
    EXPECT_EQ(cell.config.gather_ahead, cell.config.ranks == 2) << "one rank gathers nothing";
  for (const PlannedCell& cell : plan.cells) {
    const Planned planned_cell = planned(cell, capacity, {Arm::kAfter}, own_program());
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

// 2880 columns are no multiple of 128. A recipe that was asked for is refused.
TEST(PlanOfAModel, LeavesOutARecipeWhoseBlocksDoNotFit_WithTheReason) {
  PlanRequest request = over("h200", {64});
  request.model = "gpt-oss-120b";
  const ModelPlan plan = model_plan(request, capacity_of(request), bundled_vocabulary());
  std::set<std::string> recipes;
  for (const PlannedCell& cell : plan.cells) recipes.insert(cell.config.training.recipe);
  EXPECT_EQ(recipes, (std::set<std::string>{"bf16", "current", "delayed"}));
  EXPECT_NE(plan.heading.find("No rows of block: model.hidden: 2880: "), std::string::npos) << plan.heading;
  request.recipes = {"block"};
  EXPECT_NE(support::error_of([&] {
              model_plan(request, capacity_of(request), bundled_vocabulary());
            }).find("plan: model.hidden: 2880: "),
            std::string::npos);
}

TEST(PlanOfAModel, MarksFp8WeightsThatStayInHighPrecision) {
  PlanRequest request = over("h200", {2, 64});
  request.model = "llama3-8b";
  request.recipes = {"block"};
  const auto printed = [&] {
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(plan_command(request, own_program()), 0);
    return ::testing::internal::GetCapturedStdout();
  };
  const std::string table = printed();
  EXPECT_NE(table.find(") * "), std::string::npos) << table;
  EXPECT_NE(table.find("(*: FP8 weights stay in high precision"), std::string::npos) << table;
  request.ranks = {2};
  EXPECT_EQ(printed().find('*'), std::string::npos);
  request.json = true;
  EXPECT_NE(printed().find("\"refused_weights\": 0"), std::string::npos);
}

TEST(PlanOfAModel, WrongWordsAreNamedWithTheRemedy) {
  const auto error_of = [](const PlanRequest& request) {
    return support::error_of([&] { model_plan(request, capacity_of(request), bundled_vocabulary()); });
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
  PlannedCell cell;
  cell.config = small();
  Expectation limit;
  limit.metric = "memory.peak_bytes";
  limit.comparison = Comparison::kAtMost;
  limit.low = estimate(cell.config, Arm::kAfter).figures.at("memory.peak_bytes");
  Expectation measured = limit;
  measured.metric = "memory.reserved_peak_bytes";
  cell.expect = {limit, measured};
  Planned plan = planned(cell, {}, {Arm::kAfter}, own_program());
  ASSERT_EQ(plan.gates.size(), 1u) << "what only a run can tell is not judged";
  EXPECT_FALSE(plan.fails(false));
  cell.expect[0].low -= 1;
  EXPECT_TRUE(planned(cell, {}, {Arm::kAfter}, own_program()).fails(false));
  // With less memory than the peak the arm ends out of memory, as a run does.
  Expectation ending;
  ending.comparison = Comparison::kEnds;
  ending.status = "out_of_memory";
  cell.expect = {ending};
  cell.config.capacity = static_cast<std::int64_t>(limit.low);
  EXPECT_TRUE(planned(cell, {}, {Arm::kAfter}, own_program()).fails(false));
  cell.config.capacity -= 1;
  EXPECT_FALSE(planned(cell, {}, {Arm::kAfter}, own_program()).fails(false));
}

}  // namespace
}  // namespace fp8lab

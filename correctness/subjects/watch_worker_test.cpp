#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "subjects/pytorch_program.h"
#include "support/paths.h"

// `fp8lab watch` with a training program that never imports it (watched/train.py), and PyTorch on the host. Skipped
// if $FP8LAB_SUBJECT_PYTHON (python3) has no PyTorch.
namespace fp8lab {
namespace {

using Json = nlohmann::json;
using sample::contains;

class WatchedProgramTest : public PyTorchProgramTest {
 protected:
  WatchedProgramTest() : PyTorchProgramTest(paths::kWorkerFolder) {}

  /// Watches watched/train.py with a defect, on `ranks` ranks.
  int watch(const std::string& defect, int ranks = 1, const std::vector<std::string>& options = {}, int steps = 6) {
    return watch_program("train.py", {defect, std::to_string(steps)}, ranks, options);
  }
  int watch_program(const std::string& file, const std::vector<std::string>& arguments, int ranks,
                    const std::vector<std::string>& options = {}) {
    std::vector<std::string> words{"watch", "-o", (directory_ / "out").string()};
    words.insert(words.end(), options.begin(), options.end());
    words.emplace_back("--");
    for (const std::string& word : launch(ranks)) words.push_back(word);
    words.push_back(std::string(paths::kWatched) + "/" + file);
    words.insert(words.end(), arguments.begin(), arguments.end());
    sample::Process process(words, directory_.string());
    const int code = process.finish();
    output_ = process.output;
    const std::string text = sample::read(directory_ / "out/results.json");
    cell_ = text.empty() ? Json() : Json::parse(text).at("cells").at(0);
    return code;
  }

  Json value(const std::string& metric) const {
    return cell_.at("arms").at("after").at("metrics").at(metric).at("value");
  }
  bool found(const std::string& text) const { return contains(output_, "FOUND     " + text); }

  Json cell_;
};

TEST_F(WatchedProgramTest, ASoundProgramHasNoFindingAndItsBytesHaveOwners) {
  EXPECT_EQ(watch("none"), 0) << output_;
  EXPECT_EQ(cell_.at("verdict"), "pass");
  EXPECT_TRUE(contains(output_, "found     nothing")) << output_;
  EXPECT_TRUE(contains(output_, "train: 6 steps on 1 rank, cpu")) << output_;
  const int weights = 4 * (2 * (32 * 64 + 64 + 64 * 32 + 32) + 32 * 32 + 32 + 4 * 4 + 4);
  EXPECT_EQ(value("memory.weight_bytes"), weights);
  EXPECT_EQ(value("memory.by_holder.parameter"), weights);
  EXPECT_EQ(value("memory.by_holder.gradient"), weights - 4 * 20) << "`unused` needs no gradient";
  EXPECT_EQ(value("memory.by_holder.unexplained"), 0);
  EXPECT_EQ(value("memory.retained_bytes"), 0);
  EXPECT_EQ(value("memory.growth_bytes"), 0);
  EXPECT_EQ(value("parity.weights_moved"), 1);
  EXPECT_EQ(value("parity.gradients_not_finite"), 0);
  EXPECT_TRUE(value("traffic.collectives").is_null());
  EXPECT_EQ(cell_.at("arms").at("after").at("losses").size(), 6U);
}

TEST_F(WatchedProgramTest, TheProgramComputesWhatItComputesWithoutInstruments) {
  const std::string command = python_ + " " + paths::kWatched + "/train.py none > " + (directory_ / "plain").string();
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(watch("none"), 0);
  const std::string loss = sample::read(directory_ / "plain");
  ASSERT_TRUE(loss.starts_with("loss "));
  EXPECT_TRUE(contains(output_, loss)) << output_;
}

TEST_F(WatchedProgramTest, EveryPlantedLeakIsFoundWithItsHolderAndItsFirstStep) {
  EXPECT_EQ(watch("list"), 1);
  EXPECT_TRUE(found("memory grows by 2.0 KiB a step since step 3: variable train.py: history[*]")) << output_;
  EXPECT_EQ(value("memory.growth_bytes"), 2048);
  EXPECT_EQ(watch("closure"), 1);
  EXPECT_TRUE(found("memory grows by 2.0 KiB a step since step 2: variable train.py: keep[*]")) << output_;
  EXPECT_EQ(watch("attribute"), 1);
  EXPECT_TRUE(found("memory grows by 8.0 KiB a step since step 1: attribute blocks.*.seen[*] of a module")) << output_;
  EXPECT_EQ(watch("graph"), 1);
  EXPECT_TRUE(contains(output_, "a step since step 1: autograd's ")) << output_;
  EXPECT_TRUE(contains(output_, "graph of train.py: losses[*]")) << output_;  // in 2.6 behind "perhaps of the"
}

TEST_F(WatchedProgramTest, WhatAContextKeepsAfterBackwardIsRetained) {
  EXPECT_EQ(watch("context"), 1);
  EXPECT_TRUE(found("4.0 KiB stay alive after backward since step 1: autograd's IdentityBackward.kept (4.0 KiB)"))
      << output_;
  EXPECT_EQ(value("memory.retained_bytes"), 2 * 16 * 32 * 4);
}

TEST_F(WatchedProgramTest, MemoryWithoutTrafficFindsTheSame) {
  EXPECT_EQ(watch("context", 1, {"--measure", "memory,parity"}), 1);
  EXPECT_TRUE(found("4.0 KiB stay alive after backward since step 1: autograd's IdentityBackward.kept (4.0 KiB)"))
      << output_;
}

TEST_F(WatchedProgramTest, WeightsThatDoNotMoveAndGradientsThatAreNotFiniteAreNamed) {
  EXPECT_EQ(watch("unused"), 1);
  EXPECT_TRUE(
      found("2 of 12 weights have not moved in 6 steps: unused.weight (no gradient), unused.bias (no gradient)"))
      << output_;
  EXPECT_EQ(watch("nan"), 1);
  EXPECT_TRUE(found("gradients are not finite since step 3: ")) << output_;
  EXPECT_EQ(value("parity.gradients_not_finite"), 10);
  EXPECT_EQ(watch("no_rate"), 0) << "a learning rate of 0 moves nothing" << output_;
}

TEST_F(WatchedProgramTest, RanksMoveTheirGradientsAndTheWorstRankIsNamed) {
  EXPECT_EQ(watch("list_on_rank_1", 2), 1);
  EXPECT_TRUE(contains(output_, "on 2 ranks, cpu")) << output_;
  EXPECT_TRUE(contains(output_, "figures of rank 1, the worst")) << output_;
  EXPECT_TRUE(contains(output_, "train.py: history[*] (rank 1 of 2)")) << output_;
  EXPECT_TRUE(contains(cell_.at("arms").at("after").at("notes").dump(), "figures of rank 1, whose peak is largest"));
  EXPECT_EQ(value("traffic.all_reduce_bytes"), value("memory.by_holder.gradient"))
      << "DistributedDataParallel reduces each gradient once";
  EXPECT_EQ(value("memory.by_holder.unexplained"), 0);
  EXPECT_EQ(watch("first_buckets", 2), 0) << output_;
  EXPECT_EQ(value("memory.by_holder.recipe_state"), value("memory.by_holder.gradient")) << "the buckets of the setup";
}

TEST_F(WatchedProgramTest, ShardsAreGatheredAndReducedAsTheirSizesSay) {
  if (!shards_on_host()) GTEST_SKIP() << "this PyTorch shards on GPUs only";
  EXPECT_EQ(watch("sharded", 2), 0) << output_;
  const int block = 4 * (32 * 64 + 64 + 64 * 32 + 32), root = 4 * (32 * 32 + 32 + 4 * 4 + 4);
  EXPECT_EQ(value("traffic.all_gather_bytes"), 2 * 2 * block + root) << "the root stays gathered until backward";
  EXPECT_GT(value("traffic.reduce_scatter_bytes"), 2 * block);
  EXPECT_GT(value("host.pre_forward_ns"), 0);
  EXPECT_EQ(value("memory.weight_bytes"), (2 * block + root) / 2);
  const int all = (2 * block + root) / 4;
  const auto with_comma = [](int count) { return std::to_string(count).insert(1, ","); };
  EXPECT_TRUE(
      contains(output_, "with " + with_comma(all) + " parameters, " + with_comma(all / 2) + " of them on this rank"))
      << output_;
}

TEST_F(WatchedProgramTest, AProgramThatCrashesIsKilledOrHangsLeavesWhatWasMeasured) {
  EXPECT_EQ(watch("crash"), 4);
  EXPECT_TRUE(contains(output_, "failed    exit status 1; rank 0: ValueError: planted")) << output_;
  EXPECT_EQ(cell_.at("verdict"), "crashed");
  EXPECT_GT(value("memory.peak_bytes"), 0);
  EXPECT_EQ(watch("kill"), 4);
  EXPECT_TRUE(contains(output_, "failed    SIGKILL; rank 0: killed; its last recorded step is 3")) << output_;
  EXPECT_GT(value("memory.peak_bytes"), 0);
  EXPECT_EQ(watch("hang", 1, {"--timeout", "30"}), 124);
  EXPECT_TRUE(contains(output_, "stood     rank 0: after step 3, for ")) << output_;
  EXPECT_TRUE(contains(output_, "in one_step")) << output_;
}

TEST_F(WatchedProgramTest, StepsOutsideOfTheRangeAreNotMeasured) {
  EXPECT_EQ(watch("none", 1, {"--steps", "2:4"}), 0) << output_;
  EXPECT_TRUE(contains(output_, "train: 3 steps on 1 rank")) << output_;
  EXPECT_EQ(cell_.at("arms").at("after").at("losses").size(), 3U);
}

TEST_F(WatchedProgramTest, TwoLinesInTheProgramNameModelAndOptimizer) {
  EXPECT_EQ(watch("named"), 0) << output_;
  EXPECT_FALSE(contains(output_, "guessed")) << output_;
  EXPECT_TRUE(contains(output_, "train: 6 steps")) << output_ << "steps of the other optimizer are none";
  const std::string values = (directory_ / "values").string();
  EXPECT_EQ(watch("named", 1, {"--measure", "parity", "--values", values}), 0) << output_;
  EXPECT_FALSE(contains(output_, "failed")) << output_ << "the recording of the other optimizer's steps is replaced";
  EXPECT_FALSE(contains(sample::read(values + "/rank-0.tsv"), "parameter 0 of group 0"));
  EXPECT_EQ(watch("none", 1, {"--measure", "parity"}), 0);
  EXPECT_TRUE(
      contains(output_, "guessed   model: Model (the outermost module called); a step ends with a step of AdamW"))
      << output_;
}

TEST_F(WatchedProgramTest, AnOptimizerThatCallsTheModelsInItsFirstStepHasTheirNamesAndItsLists) {
  EXPECT_EQ(watch("lbfgs"), 0) << output_;
  EXPECT_TRUE(contains(output_, "12 of 12 weights moved")) << output_;
  EXPECT_GE(value("memory.by_holder.optimizer_state"), 6 * 4 * 9457) << "six directions of all weights, in lists";
}

/// `fp8lab plan` of what was watched, as text.
std::string plan_of(const std::string& results) {
  sample::Process plan({"plan", results}, ".");
  EXPECT_EQ(plan.finish(), 0) << plan.output << plan.errors;
  return plan.output;
}

TEST_F(WatchedProgramTest, ThePlanOfAModelWithAConfigIsCloseToWhatWasMeasured) {
  struct Case {
    std::vector<std::string> arguments;
    int ranks;
    std::string says;
    double low, high;  ///< measured over predicted peak
  };
  // The program differs from a torchtitan program in its norms and in having no rotations.
  const std::vector<Case> cases{
      {{"one"}, 1, "2 sequences of 192 tokens", 0.94, 1.06},
      {{"one", "twice", "autocast"}, 1, "it computes under autocast", 0.5, 1.1},
      {{"one", "sgd", "frozen"}, 1, "1 of 30 parameters are frozen", 0.5, 1.0},
      {{"one", "compiled"}, 1, "it is compiled: planned is an eager program", 0.9, 1.2},
      {{"sharded", "twice"}, 2, "master weights f32, moments f32; FSDP over all ranks", 0.94, 1.06},
      {{"replicated"}, 2, "DistributedDataParallel, all parameters on every rank", 0.94, 1.06},
  };
  for (const Case& one : cases) {
    ASSERT_EQ(watch_program("llama.py", one.arguments, one.ranks), 0) << output_;
    const std::string text = plan_of((directory_ / "out").string());
    EXPECT_TRUE(contains(text, one.says)) << text;
    sample::Process plan({"plan", (directory_ / "out").string(), "--json"}, ".");
    EXPECT_EQ(plan.finish(), 0);
    const Json arm = Json::parse(plan.output).at(0).at("arms").at("after");
    const double ratio = arm.at("measured").at("memory.peak_bytes").get<double>() /
                         arm.at("predicted").at("memory.peak_bytes").get<double>();
    EXPECT_GE(ratio, one.low) << text;
    EXPECT_LE(ratio, one.high) << text;
  }
  EXPECT_EQ(watch_program("llama.py", {"one", "nameless"}, 1), 0) << output_;
  sample::Process plan({"plan", (directory_ / "out").string()}, ".");
  EXPECT_EQ(plan.finish(), 2);
  EXPECT_TRUE(contains(plan.errors, "Llama has no Hugging Face config; name its model by --model")) << plan.errors;
}

}  // namespace
}  // namespace fp8lab

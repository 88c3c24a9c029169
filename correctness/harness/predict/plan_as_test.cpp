#include <gtest/gtest.h>

#include <string>

#include "harness/cli/plan/planned.h"
#include "harness/predict/own_program.h"
#include "support/paths.h"

// `fp8lab plan --model NAME --as LIBRARY@RELEASE`: the model by the library's memory profile.
namespace fp8lab {
namespace {

std::string planned_as(std::vector<std::string> settings) {
  Program program = own_program();
  program.worker_directory = std::string(paths::kScenarios) + "/../lib/subjects";
  PlanRequest request;
  request.model = "llama3-8b";
  request.gpu = "h100";
  request.ranks = {8};
  request.recipes = {"bf16"};
  request.as = "transformer_engine@2.16";
  request.settings = {"vocabulary=0", "loss=sum", "gather_ahead=false"};
  request.settings.insert(request.settings.end(), settings.begin(), settings.end());
  ::testing::internal::CaptureStdout();
  plan_command(request, program);
  return ::testing::internal::GetCapturedStdout();
}

TEST(PlanOfAModelAsALibrary, WithKeysOfTheProfile_HasTheLibrarysFigures) {
  const std::string text = planned_as({});
  EXPECT_NE(text.find("Figures belong to transformer_engine "), std::string::npos) << text;
  EXPECT_NE(text.find(" fits 77.6 GiB with "), std::string::npos) << text;
  EXPECT_EQ(text.find("the built-in runtime"), std::string::npos) << text;
}

TEST(PlanOfAModelAsALibrary, WithKeysThatTheProfileLacks_ListsThemAll) {
  const std::string text = planned_as({"dropout=0.1", "param_dtype=f32", "master_weights=none"});
  EXPECT_NE(text.find("the profile has transformer_layer in form llama, but lacks: "), std::string::npos) << text;
  EXPECT_NE(text.find("model.dropout=0.1 ("), std::string::npos) << text;
  EXPECT_NE(text.find("training.param_dtype=f32 ("), std::string::npos) << text;
  EXPECT_EQ(text.find("training.param_dtype: "), std::string::npos) << "a key's reason names another key: " << text;
}

std::string planned_of(std::string model, std::string as, std::vector<std::string> recipes, int ranks,
                       std::vector<std::string> settings, std::string gpu = "h100") {
  Program program = own_program();
  program.worker_directory = std::string(paths::kScenarios) + "/../lib/subjects";
  PlanRequest request;
  request.model = std::move(model);
  request.gpu = std::move(gpu);
  request.ranks = {ranks};
  request.recipes = std::move(recipes);
  request.as = std::move(as);
  request.settings = std::move(settings);
  ::testing::internal::CaptureStdout();
  plan_command(request, program);
  return ::testing::internal::GetCapturedStdout();
}

/// transformer_engine@2.20, delayed scaling.
std::string planned_as_newest(int ranks, std::vector<std::string> settings) {
  settings.insert(settings.end(), {"vocabulary=0", "loss=sum"});
  return planned_of("llama3-8b", "transformer_engine@2.20", {"delayed"}, ranks, std::move(settings));
}

TEST(PlanOfAModelAsALibrary, HasShardedFp8Weights_MicroBatches_Recomputation_AndReplicas) {
  const auto expect = [](const std::string& text, const char* words) {
    EXPECT_NE(text.find(words), std::string::npos) << words << " in " << text;
  };
  expect(planned_as_newest(8, {"quantized_weights=true"}), "delayed, FP8 weights          43.7 ");
  std::string text = planned_as_newest(8, {"checkpoint=full", "micro_batches=4"});
  expect(text, "delayed                       18.4 ");
  expect(text, "training.checkpoint=full (recomputed layers with sharded FP8 weights end with an error in backward");
  text = planned_as_newest(8, {"sharding=ddp", "layers=4"});
  expect(text, "1.6 GiB buckets of gradients");
  expect(text, "NCCL's process group may hold the buckets of the first step");
  expect(text, "training.quantized_weights=true (profiles cover DistributedDataParallel with weights in 16 bits)");
  text = planned_as_newest(7, {});
  expect(text, "delayed                       45.6 ");
  expect(text, "ranks=7 (7 shards do not divide hidden, and with padded FP8 weights ");
}

// Keys without a value of their own are named like any other.
TEST(PlanOfAModelAsALibrary, NamesOptionalKeysThatAProfileLacks) {
  for (const char* setting : {"deferred_init=true", "reduce_dtype=f32", "bias=qkv"}) {
    const std::string text = planned_as_newest(8, {setting});
    EXPECT_NE(text.find(std::string(setting) + " ("), std::string::npos) << setting << " in " << text;
  }
  EXPECT_EQ(planned_as_newest(8, {"deferred_init=false"}), planned_as_newest(8, {}));
  EXPECT_NE(
      planned_as_newest(6, {"mesh=2x3", "quantized_weights=true"}).find("mesh=2x3 (3 shards do not divide hidden"),
      std::string::npos);
}

std::string planned_of_llama(std::string as, std::vector<std::string> recipes, std::vector<std::string> settings) {
  return planned_of("llama3-8b", std::move(as), std::move(recipes), 8, std::move(settings));
}

TEST(PlanOfAMixtureAsPyTorch, HasATable_AndStatesTheAccuracyOfMixtures) {
  std::string text = planned_of("mixtral-8x7b", "torch@2.15", {}, 64, {});
  for (const char* words : {"Mixtures of experts: within 1 % in 151 of 151 on a CPU, worst 0.00 %,\n"
                            "within 1 % in 162 of 162 with CUDA's operators on shapes (FakeTensorMode), worst 0.00 %;\n"
                            "on GPUs within 1 % in 16 of 16 runs, worst 0.01 %; reserved memory within 1 % in 16 of 16 "
                            "on the same GPUs, worst 0.01 %.\n",
                            "  torch@2.15 does not fit 77.6 GiB: its live bytes are 22.7 GiB too much\n",
                            "    peak of live bytes 100.3 GiB in backward: 78.5 GiB activations saved for backward, "})
    EXPECT_NE(text.find(words), std::string::npos) << words << " in " << text;
  text = planned_of("qwen3-30b-a3b", "torch@2.15", {}, 64, {"checkpoint=full"});
  EXPECT_NE(text.find("  torch@2.15 fits 77.6 GiB with 48.9 GiB to spare"), std::string::npos) << text;
}

TEST(PlanOfAMixtureAsPyTorch, WithExpertsOfOtherRanks_HasFigures) {
  const std::string text = planned_of("deepseek-v3", "torch@2.15", {}, 2048, {"expert_parallel=64", "checkpoint=full"});
  for (const char* words : {"  torch@2.15 fits 77.6 GiB with 49.8 GiB to spare; PyTorch's allocator reserves 27.8 GiB",
                            "With `expert_parallel` figures assume the same number of rows for each expert"})
    EXPECT_NE(text.find(words), std::string::npos) << words << " in " << text;
}

// Attention with sinks, and experts with biases and limits.
TEST(PlanOfAMixtureAsPyTorch, OfGptOss_HasFigures) {
  std::string text = planned_of("gpt-oss-20b", "torch@2.15", {}, 64, {});
  for (const char* words :
       {"  torch@2.15 fits 77.6 GiB by live bytes with 1.6 GiB to spare; PyTorch's allocator reserves 86.8 GiB",
        "    peak of live bytes 76.0 GiB in backward: 52.7 GiB activations saved for backward, ",
        "With `attention_sinks` and `swiglu_limit` layers are the ones of torchtitan's GPT-OSS: "})
    EXPECT_NE(text.find(words), std::string::npos) << words << " in " << text;
  text = planned_of("gpt-oss-120b", "", {"bf16"}, 64, {"checkpoint=full", "expert_parallel=16"});
  EXPECT_NE(text.find("each, torch@2.15 fits (bf16: "), std::string::npos) << text;
  EXPECT_EQ(text.find("\n-: "), std::string::npos) << text;
}

TEST(PlanOfAModelAsPyTorch, WithSequencesDividedAmongRanks_HasFigures) {
  const std::string text =
      planned_of("llama3.1-8b", "", {"bf16"}, 64, {"context_parallel=8", "seq=131072", "checkpoint=full"});
  for (const char* words : {"16384 tokens of a sequence on each rank", "each, torch@2.15 fits (bf16: "})
    EXPECT_NE(text.find(words), std::string::npos) << words << " in " << text;
}

TEST(PlanOfAMixtureAsPyTorch, WithWhatNoFiguresCover_IsRefusedByName) {
  const auto expect = [](const std::string& text, const char* reason) {
    EXPECT_NE(text.find(reason), std::string::npos) << reason << " in " << text;
  };
  expect(planned_of("mixtral-8x7b", "torchao@0.18", {"current"}, 64, {}),
         "torchao@0.18 does not cover: model.top_k: Float8Linear computes products of all tokens");
  expect(planned_of("mixtral-8x7b", "torch@2.15", {}, 48, {}),
         "model.expert_ffn: with more shards than experts FSDP2 divides the rows of every expert, and 48 ranks do not "
         "divide 14336 rows; write a multiple of 48, a mesh of fewer shards, or a larger `expert_parallel`");
  expect(planned_of("mixtral-8x7b", "torch@2.15", {}, 8, {"expert_ffn=1001"}),
         "model.expert_ffn: rows of 1001 values are no multiple of 16 bytes, which torch._grouped_mm requires; figures "
         "cover grouped products; write a multiple of 8");
  expect(planned_of("gpt-oss-20b", "torch@2.14", {}, 64, {}),
         "model.attention_sinks: figures cover torch@2.15, whose varlen_attn() was read; write `--as torch@2.15`");
  expect(planned_of("gpt-oss-20b", "torch@2.15", {}, 64, {"shared_experts=1"}),
         "model.shared_experts: figures cover experts with limits without shared ones");
  expect(planned_of("gpt-oss-20b", "", {"bf16"}, 128, {}),
         "-: torch@2.15 does not cover: model.expert_ffn: with more shards than experts FSDP2 divides the rows");
  expect(planned_of("deepseek-v3", "torch@2.15", {}, 64, {"value_dim=64"}),
         "model.value_dim: heads have keys of 192 columns and values of 64; SDPA's kernels take equal multiples of 8 "
         "up to "
         "256, 192 and 128, or multiples of 8 up to 128, ");
  expect(planned_of("deepseek-v3", "torch@2.15", {}, 64, {"head_dim=448", "value_dim=512"}),
         "model.value_dim: heads have keys of 512 columns and values of 512; ");
}

// Without --as, too: the column of PyTorch's peaks is empty, and a line gives the reason.
TEST(PlanOfAMixture, SaysWhatPyTorchsFiguresDoNotCover) {
  const std::string reason = "\n-: torch@2.15 does not cover: model.router_aux_loss: ";
  EXPECT_NE(planned_of("mixtral-8x7b", "", {}, 64, {"router_aux_loss=0.01"}).find(reason), std::string::npos);
  EXPECT_EQ(planned_of("mixtral-8x7b", "", {"bf16"}, 64, {}).find("\n-: "), std::string::npos);
}

// No change is proposed that leaves PyTorch without a figure, such as moments in BF16 next to FP32 masters.
TEST(PlanOfAMixture, ProposesChangesThatPyTorchsFiguresCover) {
  const std::string text = planned_of("deepseek-v3", "", {"bf16"}, 64, {}, "h200");
  EXPECT_NE(text.find("  training.checkpoint=full, ranks="), std::string::npos) << text;
  EXPECT_EQ(text.find("training.moments=bf16"), std::string::npos) << text;
}

TEST(PlanOfAModelAsPyTorch, StatesHowFarItIsFromRunsAndWhatMayNotFit) {
  const std::string text = planned_of_llama("torch@2.15", {}, {});
  for (const char* words :
       {"As torch@2.15: live bytes of an eager program", "within 1 % in 304 of 304 on a CPU",
        "within 1 % in 319 of 319 with CUDA's operators on shapes",
        "Figures belong to torch@2.15, predicted from what its program allocates.\n",
        "On GPUs within 1 % in 99 of 99 runs, worst 0.08 %; reserved memory within 1 % in 98 of 99 on "
        "the same GPUs, worst 7.05 %\n",
        "DistributedDataParallel on GPUs within 1 % in 6 of 9 runs",
        "  torch@2.15 fits 77.6 GiB with 1.9 GiB to spare; PyTorch's allocator reserves 75.7 GiB, "
        "with a margin of 2 %\n",
        "    peak of live bytes 65.2 GiB in backward: 41.2 GiB activations saved for backward, "})
    EXPECT_NE(text.find(words), std::string::npos) << words << " in " << text;
  EXPECT_EQ(text.find("delayed"), std::string::npos) << "PyTorch trains in bf16 by itself: " << text;
}

TEST(PlanOfAModelAsTransformerEngine, HasEmbeddingAndHead) {
  const std::string text = planned_of_llama("transformer_engine@2.16", {"bf16", "block"}, {"quantized_weights=false"});
  for (const char* words :
       {"  transformer_engine 2.9 to 2.20 fits 77.6 GiB with 16.6 GiB to spare",
        "\nEnd of forward and peak compared with recorded runs of 2.9.0, 2.12.0, 2.20.2: within 1 % "
        "in 220 of 227 runs, worst 1.36 %.\nDistributedDataParallel within 1 % in 24 of 28 runs, ",
        "peak 61.1 GiB in backward: 34.2 GiB activations saved for backward, 11.7 GiB logits, "})
    EXPECT_NE(text.find(words), std::string::npos) << words << " in " << text;
}

TEST(PlanOfAModelAsPyTorch, WithARecipeInEightBits_IsRefusedByName) {
  const std::string text = planned_of_llama("torch@2.15", {"delayed"}, {"dropout=0.1"});
  EXPECT_NE(text.find("torch@2.15 does not cover: training.recipe: delayed"), std::string::npos) << text;
  EXPECT_NE(text.find("model.dropout: "), std::string::npos) << text;
}

TEST(PlanOfAModel, HasPyTorchNextToTheBuiltInRuntime_AndNoLineWithoutASubject) {
  const std::string text = planned_of_llama("", {"bf16", "delayed", "current"}, {});
  for (const char* words :
       {"Over 8 ranks of 77.6 GiB each, torch@2.15 fits (bf16: 75.7 GiB reserved), transformer_engine@2.20 may not fit "
        "(delayed: 57.6 GiB live), torchao@0.18 fits (current: 77.1 GiB reserved; current, FP8 weights: 76.4 GiB "
        "reserved), and the built-in runtime fits in all 5 rows by live bytes.\n",
        "an eager program with\nFSDP2 (FP32 shards, BF16 layers, gradients reduced in FP32), FP32 logits, ",
        "  the built-in runtime fits 77.6 GiB with ", "  torch@2.15, FSDP2 in BF16, fits 77.6 GiB with ",
        "  torchao@0.18, FSDP2 in FP8, fits 77.6 GiB with ",
        "  transformer_engine@2.20, FSDP2 in FP8, fits 77.6 GiB by live bytes with 20.1 GiB to spare; PyTorch's "
        "allocator reserves at most 77.7 GiB, 35 % more than live, as in recorded runs: it may not fit\n",
        "\n-: transformer_engine@2.20: the profile has transformer_layer in form llama, but lacks: "
        "training.quantized_weights=true (with embedding and head profiles cover sharded weights in 16 bits, "})
    EXPECT_NE(text.find(words), std::string::npos) << words << " in " << text;
  for (std::size_t at = text.find("\n  fits"); at != std::string::npos; at = text.find("\n  fits", at + 1))
    ADD_FAILURE() << "a line has `fits` without its subject: " << text.substr(at, 100);
}

}  // namespace
}  // namespace fp8lab

#include "harness/subjects/torch_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "core/check.h"
#include "harness/cell/sharding_keys.h"
#include "harness/predict/predict.h"
#include "support/error_of.h"
#include "support/paths.h"

// The closed form of PyTorch's memory: next to recorded runs of PyTorch, next to a run made here if PyTorch is
// installed, and its terms by hand.
namespace fp8lab {
namespace {

using eager::Operators;
using eager::Program;

const std::string kWorkerDirectory = std::string(paths::kScenarios) + "/../lib/subjects";

// Not counted are scalars of the loss, and vectors next to which a host composes RMSNorm: 400 bytes of 2 MB.
constexpr double kTolerance = 3e-4;

/// Fails if a figure is further from the run's than kTolerance, or is no number.
void expect_close(const TorchRun& run) {
  const eager::Memory memory = memory_of(run.cell, run.program, run.operators);
  for (const auto& [name, measured] :
       {std::pair("memory.peak_bytes", run.peak), std::pair("memory.end_of_forward_bytes", run.end_of_forward),
        std::pair("memory.end_of_backward_bytes", run.end_of_backward),
        std::pair("memory.end_of_step_bytes", run.end_of_step)}) {
    const auto predicted = static_cast<double>(memory.figures.at(name));
    EXPECT_TRUE(std::abs(predicted - measured) <= kTolerance * measured)
        << name << ": predicted " << predicted << ", measured " << measured << ": " << run.what;
  }
}

CellConfig llama3_8b(int ranks) {
  CellConfig cell;
  cell.device = "meta";
  cell.ranks = ranks;
  cell.reduce_dtype = ReduceDType::kF32;
  cell.model = {.layer = "transformer_layer",
                .form = "llama",
                .layers = 32,
                .hidden = 4096,
                .heads = 32,
                .kv_heads = 8,
                .ffn = 14336,
                .seq = 8192};
  cell.model.vocabulary = 128256;
  cell.training.steps = 2;
  cell.training.loss = Loss::kCrossEntropy;
  cell.training.optimizer = Optimizer::kAdam;
  cell.training.master_weights = Master::kF32;
  return cell;
}

TorchMemory newest(const char* library = "torch") {
  return TorchMemory::find(kWorkerDirectory, TorchMemory::newest(library));
}

double figure(const CellConfig& cell, const char* name, const char* library = "torch") {
  return newest(library).estimate(cell, Arm::kAfter, Program::kTorchtitan).figures.at(name);
}

std::int64_t held(const Estimate& estimate, std::string_view owner) {
  for (const auto& [name, bytes] : estimate.peak_by_owner)
    if (name == owner) return bytes;
  return 0;
}

std::string reason_of(const CellConfig& cell, Arm arm = Arm::kAfter, const char* library = "torch",
                      Program program = Program::kTorchtitan) {
  return support::error_of([&] { newest(library).estimate(cell, arm, program); });
}

TEST(TorchMemoryOfRecordedRuns, EqualsTheMeasuredBytes) {
  const TorchRuns runs = read_torch_runs(TorchMemory::runs_in(kWorkerDirectory));
  ASSERT_GE(runs.rows.size(), 990U);
  for (const TorchRun& run : runs.rows) expect_close(run);
  for (const Operators operators : {Operators::kHost, Operators::kCudaOnShapes}) {
    const Accuracy accuracy = accuracy_of(runs, operators);
    EXPECT_GE(accuracy.runs, 25U);
    EXPECT_EQ(accuracy.within, accuracy.runs);
    EXPECT_TRUE(accuracy.worst <= kTolerance) << accuracy.worst;
  }
}

TEST(TorchMemoryOfRecordedRuns, CollectivesCarryThePredictedBytes) {
  TorchRuns runs = read_torch_runs(TorchMemory::runs_in(kWorkerDirectory));
  std::erase_if(runs.rows, [](const TorchRun& run) { return !run.traffic; });
  EXPECT_GE(runs.rows.size(), 120U);
  for (TorchRun& run : runs.rows) {
    EXPECT_EQ(traffic_mismatch(run), "");
    EXPECT_EQ(run.traffic->contains("traffic.all_to_all_bytes"), run.cell.expert_parallel > 1) << run.what;
    run.cell.model.layers += 1;
    EXPECT_NE(traffic_mismatch(run), "") << "the comparison can fail: " << run.what;
  }
}

// A plan follows few micro-batches of a step, and has the figures of all: with the order of blocks in CUDA's allocator
// too.
TEST(TorchMemoryOfManyMicroBatches, EqualsWhatAllOfThemHold) {
  std::size_t compared = 0;
  for (const std::string& path : {TorchMemory::runs_in(kWorkerDirectory), TorchMemory::gpu_runs_in(kWorkerDirectory)})
    for (TorchRun& run : read_torch_runs(path).rows) {
      run.cell.training.micro_batches = 6;
      const eager::Memory few = memory_of(run.cell, run.program, run.operators);
      const eager::Memory all = memory_of(run.cell, run.program, run.operators, 6);
      EXPECT_EQ(few.figures, all.figures) << run.what;
      EXPECT_EQ(few.at_peak, all.at_peak) << run.what;
      EXPECT_EQ(std::pair(few.received, few.sent), std::pair(all.received, all.sent)) << run.what;
      ++compared;
    }
  EXPECT_GE(compared, 990U + 129U);
}

// A mixture without attention, too: the threads of forward and of backward have a cuBLAS handle each.
TEST(TorchMemoryOfMixtures, HasTwoWorkspaces) {
  CellConfig cell;
  cell.device = "meta";
  cell.model = {.layer = "layernorm_mlp", .form = "llama", .layers = 2, .hidden = 256, .seq = 64, .batch = 2};
  cell.model.experts = 8;
  cell.model.top_k = 2;
  cell.model.expert_ffn = 128;
  const eager::Memory memory = memory_of(cell, Program::kWorker, Operators::kCuda);
  EXPECT_EQ(memory.at_peak.at(static_cast<std::size_t>(eager::Owner::kLibraries)), 2 * (std::int64_t{32} << 20));
}

// Layers that keep the results of products and attention hold more than layers that keep their input only.
TEST(TorchMemoryOfRecordedRuns, OfSelectiveRecomputation_AreBetweenNoneAndFull) {
  const char* const name = "memory.end_of_forward_bytes";
  std::size_t compared = 0;
  for (const TorchRun& run : read_torch_runs(TorchMemory::runs_in(kWorkerDirectory)).rows) {
    const bool is_dense = !has_latents(run.cell.model) && !routes_tokens(run.cell.model);
    if (!is_selective(run.cell.training.checkpoint) || !is_dense || run.cell.training.frozen_layers > 0) continue;
    CellConfig cell = run.cell;
    const auto of = [&](Recompute recompute) {
      cell.training.checkpoint = recompute;
      return static_cast<double>(memory_of(cell, run.program, run.operators).figures.at(name));
    };
    EXPECT_LT(of(Recompute::kFull), of(Recompute::kSelectiveAlternate)) << run.what;
    EXPECT_LT(of(Recompute::kSelectiveAlternate), of(Recompute::kSelective)) << run.what;
    EXPECT_LT(of(Recompute::kSelective), of(Recompute::kNone)) << run.what;
    ++compared;
  }
  EXPECT_GE(compared, 42U);
}

// A token has `top_k` rows: with one more, a layer saves its input of the experts, gate, up, SiLU's output and the
// product in 16 bits, what the experts return in FP32, and the numbers that sort the rows.
TEST(TorchMemoryOfMixtures, GrowsWithTheRowsOfTokens_NotWithTheNumberOfExperts) {
  std::size_t compared = 0;
  for (const TorchRun& run : read_torch_runs(TorchMemory::runs_in(kWorkerDirectory)).rows) {
    const ModelConfig& model = run.cell.model;
    const bool recomputes = run.cell.training.checkpoint != Recompute::kNone;
    if (!routes_tokens(model) || recomputes || run.cell.training.param_dtype == ParamDType::kF32) continue;
    CellConfig more = run.cell;
    ++more.model.top_k;
    const auto saved = [&](const CellConfig& cell) {
      return memory_of(cell, run.program, run.operators).figures.at("memory.end_of_forward_bytes");
    };
    const std::int64_t permutation = run.cell.expert_parallel > 1 ? 8 : 0;
    // With limits, clamped gate and up and the sigmoid too, and the numbers of the biases of two products.
    const std::int64_t of_expert =
        model.swiglu_limit > 0.0 ? 2 * 7 * mlp_width(model) + 2 * 8 : 2 * 4 * mlp_width(model);
    const std::int64_t row = 2 * model.hidden + of_expert + 4 * model.hidden + 3 * 8 + 2 * 4 + permutation;
    const std::int64_t layers = model.layers - std::max(model.dense_layers, run.cell.training.frozen_layers);
    const std::int64_t tokens = model.seq / run.cell.context_parallel * model.batch;
    EXPECT_EQ(saved(more) - saved(run.cell), layers * tokens * row) << run.what;
    ++compared;
  }
  EXPECT_GE(compared, 110U);
}

// A rank computes the same number of rows with fewer experts. They are sharded over fewer ranks, so their shards have
// the same size, and a gather of them has one part in `expert_parallel` of the bytes.
TEST(TorchMemoryOfMixtures, WithExpertsOfOtherRanks_GathersFewerBytes_AndKeepsAsMany) {
  CellConfig cell = llama3_8b(64);
  cell.model.experts = 64;
  cell.model.top_k = 4;
  cell.model.expert_ffn = 2048;
  cell.model.layers = 4;
  const auto all = newest().estimate(cell, Arm::kAfter, Program::kTorchtitan).figures;
  cell.expert_parallel = 16;
  const auto divided = newest().estimate(cell, Arm::kAfter, Program::kTorchtitan).figures;
  EXPECT_EQ(divided.at("memory.weight_bytes"), all.at("memory.weight_bytes"));
  const double of_experts = 4.0 * 64 * 3 * 2048 * 4096 * 2, passes = 2;
  EXPECT_EQ(all.at("traffic.all_gather_bytes") - divided.at("traffic.all_gather_bytes"),
            passes * of_experts * (1 - 1.0 / 16));
  const double rows = 8192.0 * 4 * 4096 * 2, counts = 64 * 8;
  EXPECT_EQ(divided.at("traffic.all_to_all_bytes"), 16 * 4 * (4 * rows + counts));
  EXPECT_FALSE(all.contains("traffic.all_to_all_bytes"));
  EXPECT_LT(divided.at("memory.peak_bytes"), all.at("memory.peak_bytes"));
}

// A rank receives what the others have of an array: of the experts three of four parts, of all else 63 of 64.
// Reductions are sums in FP32 of the same arrays, one for each two gathers.
TEST(MovedByRank, HasThePartOfTheRanksThatShardAnArray) {
  CellConfig cell = llama3_8b(64);
  cell.model.experts = 64;
  cell.model.top_k = 4;
  cell.model.expert_ffn = 2048;
  cell.expert_parallel = 16;
  const double of_experts = 2.0 * static_cast<double>(cell.model.layers) * 4 * 3 * 2048 * 4096 * 2;
  for (const Estimate& estimated :
       {newest().estimate(cell, Arm::kAfter, Program::kTorchtitan), estimate(cell, Arm::kAfter)}) {
    ASSERT_TRUE(estimated.moved.has_value());
    // The own runtime gathers counts of tokens too, at most 20 bytes of a million.
    const double others = estimated.figures.at("traffic.all_gather_bytes") - of_experts;
    EXPECT_NEAR(estimated.moved->received, others * 63 / 64 + of_experts * 3 / 4, 2e-5 * others);
    const double reduced = estimated.figures.at("traffic.reduce_scatter_bytes") - of_experts;
    EXPECT_NEAR(estimated.moved->sent, reduced * 63 / 64 + of_experts * 3 / 4, 1.0);
  }
}

TEST(TorchMemoryOfMixtures, WithExpertsOfOtherRanks_IsRefusedForOtherReleases_AndForTheWorker) {
  CellConfig cell = llama3_8b(8);
  cell.model.experts = 8;
  cell.model.top_k = 2;
  cell.expert_parallel = 4;
  EXPECT_EQ(reason_of(cell), "");
  EXPECT_NE(reason_of(cell, Arm::kAfter, "torch", Program::kWorker)
                .find("expert_parallel: figures cover it in torchtitan's "),
            std::string::npos);
  const std::string of_older = support::error_of(
      [&] { TorchMemory::find(kWorkerDirectory, "torch@2.14").estimate(cell, Arm::kAfter, Program::kTorchtitan); });
  EXPECT_NE(of_older.find("write `--as torch@2.15`"), std::string::npos) << of_older;
  EXPECT_NE(reason_of(cell, Arm::kAfter, "torchao").find("write `--as torch@2.15`"), std::string::npos);
}

// Frozen layers have no gradients and save nothing, so each program holds less than the same program that trains all.
TEST(TorchMemoryOfRecordedRuns, OfFrozenLayers_AreBelowTheSameProgramsThatTrainAll) {
  std::size_t compared = 0;
  for (const TorchRun& run : read_torch_runs(TorchMemory::runs_in(kWorkerDirectory)).rows) {
    if (run.cell.training.frozen_layers == 0) continue;
    CellConfig cell = run.cell;
    cell.training.frozen_layers = 0;
    const eager::Memory all = memory_of(cell, run.program, run.operators);
    const auto of = [&](const char* name) { return static_cast<double>(all.figures.at(name)); };
    EXPECT_LT(run.end_of_forward, of("memory.end_of_forward_bytes")) << run.what;
    EXPECT_LT(run.end_of_backward, of("memory.end_of_backward_bytes")) << run.what;
    EXPECT_LT(run.peak, of("memory.peak_bytes")) << run.what;
    ++compared;
  }
  EXPECT_GE(compared, 133U);
}

bool is_replica(const TorchRun& run) { return is_replicated(run.cell); }

void expect_near_on_gpu(double predicted, double measured, const char* name, const TorchRun& run) {
  EXPECT_TRUE(std::abs(predicted - measured) <= std::max<double>(8 << 20, 0.003 * measured))
      << name << ": predicted " << predicted << ", measured " << measured << ": " << run.what;
}

// A block that leaves at most 1 MiB of its segment is counted with this rest, and the rest depends on the order of
// all frees before. What is reserved depends on it more: one of 120 runs is 13 % from the prediction.
TEST(TorchMemoryOfRunsOnGpus, PeaksAreNear_AndReservedMemoryMostly) {
  TorchRuns runs = read_torch_runs(TorchMemory::gpu_runs_in(kWorkerDirectory));
  std::erase_if(runs.rows, is_replica);
  ASSERT_GE(runs.rows.size(), 120U);
  for (const TorchRun& run : runs.rows) {
    const eager::Memory memory = memory_of(run.cell, run.program, run.operators);
    for (const auto& [name, measured] :
         {std::pair("memory.peak_bytes", run.peak), std::pair("memory.end_of_forward_bytes", run.end_of_forward),
          std::pair("memory.end_of_backward_bytes", run.end_of_backward),
          std::pair("memory.end_of_step_bytes", run.end_of_step)}) {
      expect_near_on_gpu(static_cast<double>(memory.figures.at(name)), measured, name, run);
    }
  }
  const Accuracy live = accuracy_of(runs, Operators::kCuda), reserved = accuracy_of_reserved(runs);
  EXPECT_EQ(live.within, runs.rows.size());
  EXPECT_TRUE(live.worst <= 0.0025) << live.worst;
  EXPECT_EQ(reserved.runs, runs.rows.size());
  EXPECT_GE(reserved.within, runs.rows.size() - 3);
  EXPECT_TRUE(reserved.worst <= 0.15) << reserved.worst;
}

// NCCL's process group frees the buckets of the first step when a later collective finds that its watchdog has seen the
// end: before the second step's forward, or in its backward, and then they add to its peak.
TEST(TorchMemoryOfRunsOnGpus, PeaksOfReplicas_HaveTheFirstStepsBuckets_OrDoNot) {
  TorchRuns runs = read_torch_runs(TorchMemory::gpu_runs_in(kWorkerDirectory));
  std::erase_if(runs.rows, [](const TorchRun& run) { return !is_replica(run); });
  ASSERT_GE(runs.rows.size(), 9U);
  const auto buckets = static_cast<std::size_t>(eager::Owner::kBuckets);
  std::size_t with = 0;
  for (const TorchRun& run : runs.rows) {
    const eager::Memory memory = memory_of(run.cell, run.program, run.operators);
    const auto peak = static_cast<double>(memory.figures.at("memory.peak_bytes"));
    const auto first_buckets = static_cast<double>(memory.at_peak.at(buckets) - memory.at_end_of_forward.at(buckets));
    EXPECT_GT(first_buckets, 0.05 * peak) << run.what;
    const bool has_both = run.peak > peak - first_buckets / 2;
    with += has_both;
    expect_near_on_gpu(has_both ? peak : peak - first_buckets, run.peak, "memory.peak_bytes", run);
    expect_near_on_gpu(static_cast<double>(memory.figures.at("memory.end_of_forward_bytes")), run.end_of_forward,
                       "memory.end_of_forward_bytes", run);
  }
  EXPECT_GE(with, 6U);
}

// A row that another program or other operators made is further away: the comparison above can fail.
TEST(TorchMemoryOfRecordedRuns, OfAnotherProgram_Differs) {
  const TorchRuns runs = read_torch_runs(TorchMemory::runs_in(kWorkerDirectory));
  for (const TorchRun& run : runs.rows) {
    if (run.cell.model.form != "llama" || run.cell.training.checkpoint != Recompute::kNone) continue;
    if (run.cell.training.frozen_layers == run.cell.model.layers) continue;  // no layer saves anything
    const Operators others = run.operators == Operators::kHost ? Operators::kCudaOnShapes : Operators::kHost;
    const auto predicted =
        static_cast<double>(memory_of(run.cell, run.program, others).figures.at("memory.end_of_forward_bytes"));
    EXPECT_FALSE(std::abs(predicted - run.end_of_forward) <= kTolerance * run.end_of_forward) << run.what;
  }
}

TEST(TorchMemoryOfLlama3, HasTheTermsOfEagerMode) {
  const CellConfig cell = llama3_8b(8);
  const Estimate estimate = newest().estimate(cell, Arm::kAfter, Program::kTorchtitan);
  const std::int64_t logits = std::int64_t{8192} * 128256;
  EXPECT_EQ(held(estimate, "logits, log-probabilities and their gradients"), 12 * logits);
  EXPECT_EQ(estimate.peak_phase, "backward");
  // 8,030,261,248 parameters in FP32 over eight ranks, and a table of rotary angles, which is no parameter.
  EXPECT_EQ(estimate.figures.at("memory.weight_bytes"), 8030261248.0 / 8 * 4);
  // Each layer saves its input, two norms' outputs, Q, K, V, attention's output and the stream behind it, and in the
  // MLP gate, up, SiLU's output and the product: 2 bytes each; FP32 statistics and log-sum-exps.
  const std::int64_t layer = 2 * (6 * 4096 + 2 * 1024 + 4 * 14336) + 4 * (2 + 32);
  const std::int64_t saved = held(estimate, "activations saved for backward");
  const std::int64_t ends = 8192 * (2 * 2 * 4096 + 4);  // the last layer's output, and the last norm's
  EXPECT_NEAR(static_cast<double>(saved), static_cast<double>(32 * 8192 * layer + ends), 32 * 2 * 512);
}

TEST(TorchMemoryOfLlama3, WithRecomputation_IsTheInputsOfLayersAndOneLayer) {
  CellConfig cell = llama3_8b(8);
  const double all = figure(cell, "memory.end_of_forward_bytes");
  cell.training.checkpoint = Recompute::kFull;
  const double inputs = figure(cell, "memory.end_of_forward_bytes");
  const double layer = 8192.0 * (2 * (5 * 4096 + 2 * 1024 + 4 * 14336) + 4 * (2 + 32)) + 2 * 512;
  EXPECT_NEAR(all - inputs, 32 * layer, 32 * 1024);
}

// 24 of 32 layers are frozen, and the embedding: eight layers, the last norm and the head have gradients and moments. A
// trained layer saves what it saved, except that nothing of the first one's input is kept beyond its norm's.
TEST(TorchMemoryOfLlama3, WithFrozenLayers_KeepsStatesAndActivationsOfTheOthers) {
  CellConfig cell = llama3_8b(8);
  const auto estimate = [&] { return newest().estimate(cell, Arm::kAfter, Program::kTorchtitan); };
  const Estimate all = estimate();
  cell.training.frozen_layers = 24;
  const Estimate eight = estimate();
  EXPECT_EQ(eight.figures.at("memory.weight_bytes"), all.figures.at("memory.weight_bytes"));
  const std::int64_t layer = 2 * 4096 + 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336), table = std::int64_t{128256} * 4096;
  const auto states_of = [](std::int64_t elements) { return static_cast<double>(elements) / 8 * 8; };
  EXPECT_NEAR(all.figures.at("memory.end_of_step_bytes") - eight.figures.at("memory.end_of_step_bytes"),
              states_of(24 * layer + table), 24 * 16 * 512);
  const char* const saved = "activations saved for backward";
  EXPECT_NEAR(static_cast<double>(held(eight, saved)), static_cast<double>(held(all, saved)) / 4, 0.02 * 42e9);
  EXPECT_LT(held(eight, saved), held(all, saved) / 4 + (std::int64_t{1} << 28));
  cell.training.frozen_layers = 32;  // only the last norm and the head are trained
  EXPECT_LT(held(estimate(), saved), std::int64_t{3} * 8192 * 4096 * 2);
}

// pytorch#129721: Llama-3 8B over eight GPUs, FSDP2, no recomputation: 77.29 GiB reserved.
TEST(TorchMemoryOfLlama3, ReservedMemory_IsNearThePublishedFigure) {
  const CellConfig cell = llama3_8b(8);
  const double reserved = figure(cell, "memory.reserved_peak_bytes"), peak = figure(cell, "memory.peak_bytes");
  EXPECT_GE(reserved, peak);
  constexpr double kGiB = 1 << 30;
  EXPECT_NEAR(reserved / kGiB, 77.29, 0.05 * 77.29) << "live " << peak / kGiB;
}

TEST(TorchMemory, OfFewerSteps_OfMoreRanks_IsLess) {
  CellConfig cell = llama3_8b(8);
  const double peak = figure(cell, "memory.peak_bytes");
  EXPECT_LT(figure(llama3_8b(64), "memory.peak_bytes"), peak);
  cell.training.steps = 7;  // the same peak as for two
  EXPECT_EQ(figure(cell, "memory.peak_bytes"), peak);
  cell.model.batch = 2;
  EXPECT_GT(figure(cell, "memory.peak_bytes"), 1.5 * peak);
}

// If ranks have sequences between them, one of them saves the output of attention twice: as attention returned it, and
// as the next product reads it.
TEST(TorchMemory, OfDividedSequences_HasTheRing_AndNamesWhatItWasNotComparedWith) {
  CellConfig cell = llama3_8b(8);
  CellConfig divided = cell;
  divided.model.seq *= 4;
  divided.context_parallel = 4;
  const char* const saved = "memory.end_of_forward_bytes";
  EXPECT_EQ(figure(divided, saved), figure(cell, saved) + 32 * 8192 * 4096 * 2.0);
  EXPECT_EQ(figure(divided, "memory.weight_bytes"), figure(cell, "memory.weight_bytes"));
  EXPECT_EQ(reason_of(divided), "");
  EXPECT_NE(reason_of(divided, Arm::kAfter, "torch", Program::kWorker).find("context_parallel: "), std::string::npos);
  CellConfig other = divided;
  other.training.checkpoint = Recompute::kSelective;
  other.model.positions = Positions::kLearned;
  other.sharding = Sharded::kDdp;
  other.training.master_weights = Master::kNone;
  const std::string reason = reason_of(other);
  for (const char* key : {"training.checkpoint: with ", "model.positions: with ", "sharding: with "})
    EXPECT_NE(reason.find(key), std::string::npos) << key << " in " << reason;
}

TEST(TorchMemory, OfKeysThatItDoesNotCover_NamesEach) {
  CellConfig cell = llama3_8b(8);
  EXPECT_EQ(reason_of(cell), "");
  cell.mesh = "2x4";
  EXPECT_EQ(reason_of(cell), "");
  cell.model.window = 512;
  cell.model.dropout = 0.1;
  cell.training.recipe = "delayed";
  const std::string reason = reason_of(cell);
  for (const char* key : {"model.window: ", "model.dropout: ", "training.recipe: delayed; "})
    EXPECT_NE(reason.find(key), std::string::npos) << key << " in " << reason;
  cell.model.window = 0;
  cell.model.dropout = 0;
  EXPECT_EQ(reason_of(cell, Arm::kBf16), "");
  cell = llama3_8b(8);
  cell.training.master_weights = Master::kNone;
  EXPECT_NE(reason_of(cell).find("training.moments: "), std::string::npos) << reason_of(cell);
  cell.training.moments = Moments::kBF16;
  EXPECT_EQ(reason_of(cell), "");
  CellConfig alone = llama3_8b(1);
  EXPECT_NE(reason_of(alone).find("training.master_weights: "), std::string::npos) << reason_of(alone);
  alone.sharding = Sharded::kFsdp;
  EXPECT_EQ(reason_of(alone), "");
  CellConfig in_f32 = cell;
  in_f32.training.param_dtype = ParamDType::kF32;
  in_f32.training.moments = Moments::kF32;
  EXPECT_NE(reason_of(in_f32).find("model.kv_heads: "), std::string::npos) << reason_of(in_f32);
  in_f32.model.kv_heads = in_f32.model.heads;
  EXPECT_EQ(reason_of(in_f32), "");
  cell.model.vocabulary = 0;
  EXPECT_NE(reason_of(cell).find("model.vocabulary: "), std::string::npos) << reason_of(cell);
  EXPECT_NE(reason_of(cell).find("training.loss: "), std::string::npos) << reason_of(cell);
  cell.training.loss = Loss::kMse;
  cell.model.layer = "layernorm_mlp";
  EXPECT_EQ(reason_of(cell, Arm::kAfter, "torch", Program::kWorker), "");
  EXPECT_NE(reason_of(cell).find("model.layer: "), std::string::npos) << reason_of(cell);
}

// DistributedDataParallel adds its buckets to what one rank holds, in every phase, and no more.
TEST(TorchMemory, OfReplicas_IsThatOfOneRankAndBucketsOfAllGradients) {
  CellConfig alone = llama3_8b(1), replicas = llama3_8b(2);
  for (CellConfig* cell : {&alone, &replicas}) {
    cell->device = "cpu";
    cell->reduce_dtype.reset();
    cell->training.master_weights = Master::kNone;
    cell->training.moments = Moments::kBF16;
  }
  replicas.sharding = Sharded::kDdp;
  EXPECT_EQ(reason_of(replicas), "");
  const double weights = figure(alone, "memory.weight_bytes");  // gradients have their type
  for (const char* name : {"memory.peak_bytes", "memory.end_of_forward_bytes", "memory.end_of_backward_bytes",
                           "memory.end_of_step_bytes", "memory.optimizer_peak_bytes"})
    EXPECT_EQ(figure(replicas, name) - figure(alone, name), weights) << name;
  EXPECT_EQ(held(newest().estimate(replicas, Arm::kAfter, Program::kTorchtitan), "DistributedDataParallel's buckets"),
            static_cast<std::int64_t>(weights));
}

TEST(TorchMemoryOfTorchao, OfKeysThatItDoesNotCover_NamesEach) {
  CellConfig cell = llama3_8b(8);
  cell.training.recipe = "current";
  EXPECT_NE(reason_of(cell).find("training.recipe: current; "), std::string::npos) << reason_of(cell);
  EXPECT_EQ(reason_of(cell, Arm::kAfter, "torchao"), "");
  cell.training.quantized_weights = true;
  EXPECT_EQ(reason_of(cell, Arm::kAfter, "torchao"), "");
  cell.mesh = "8x1";
  cell.training.recipe = "block";
  const std::string reason = reason_of(cell, Arm::kAfter, "torchao");
  for (const char* key : {"training.recipe: block; ", "training.quantized_weights: "})
    EXPECT_NE(reason.find(key), std::string::npos) << key << " in " << reason;
  EXPECT_EQ(reason_of(cell, Arm::kBf16, "torchao"), "");
  cell = llama3_8b(8);
  cell.training.recipe = "current";
  cell.training.checkpoint = Recompute::kSelective;
  EXPECT_NE(reason_of(cell, Arm::kAfter, "torchao").find("training.checkpoint: selective keeps"), std::string::npos);
  EXPECT_EQ(reason_of(cell, Arm::kBf16, "torchao"), "");
}

// What its Float8Linear saves is the input in 16 bits, as without it.
TEST(TorchMemoryOfTorchao, SavesWhatBf16Saves_GathersInEightBits) {
  CellConfig cell = llama3_8b(8);
  const auto owned = [&](std::string_view owner) {
    return held(newest("torchao").estimate(cell, Arm::kAfter, Program::kTorchtitan), owner);
  };
  const double in_bf16 = figure(cell, "memory.end_of_forward_bytes");
  const std::int64_t saved = owned("activations saved for backward");
  cell.training.recipe = "current";
  EXPECT_EQ(figure(cell, "memory.end_of_forward_bytes", "torchao"), in_bf16);
  EXPECT_EQ(owned("activations saved for backward"), saved);
  EXPECT_EQ(newest("torchao").estimate(cell, Arm::kBf16, Program::kTorchtitan).figures.at("memory.peak_bytes"),
            figure(llama3_8b(8), "memory.peak_bytes"));
  cell.model.seq = 64;  // so that parameters make the peak
  const double in_16_bits = figure(cell, "memory.forward_peak_bytes", "torchao");
  cell.training.quantized_weights = true;
  EXPECT_LT(figure(cell, "memory.forward_peak_bytes", "torchao"), in_16_bits);
}

TEST(TorchMemoryOfTorchao, StatesHowItWasCompared) {
  const std::string title = newest("torchao").title(Program::kTorchtitan);
  EXPECT_EQ(title.rfind("As torchao@0.18: ", 0), 0U) << title;
  for (const char* part : {"torch.compile fuses", "with CUDA's operators on shapes"})
    EXPECT_NE(title.find(part), std::string::npos) << title;
  EXPECT_EQ(title.find("on a CPU"), std::string::npos) << title;
  EXPECT_EQ(newest().title(Program::kTorchtitan).find("torch.compile"), std::string::npos);
}

TEST(TorchMemory, OfReleasesThatItDoesNotCover_IsRefused) {
  for (const char* release : {"torch@2.8", "torch@2.16", "torch@3.1", "torch@", "torch", "torch@2", "torchao@0.12",
                              "torchao@0.19", "torchao@2.15", "torchao", "tensorflow@2.15"})
    EXPECT_THROW(TorchMemory::find(kWorkerDirectory, release), Error) << release;
  for (const char* release : {"torch@2.9", "torch@2.11.0", "torch@2.15", "torchao@0.13", "torchao@0.18.0"})
    EXPECT_EQ(TorchMemory::find(kWorkerDirectory, release).name(), release);
}

// Real PyTorch, if $FP8LAB_SUBJECT_PYTHON has it.
TEST(TorchMemory, OfARunMadeHere_EqualsItsBytes) {
  const char* const python = std::getenv("FP8LAB_SUBJECT_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "FP8LAB_SUBJECT_PYTHON names no Python that has PyTorch";
  const std::string path = ::testing::TempDir() + "torch-memory-here.json";
  for (const char* operators : {"host", "cuda_shapes"}) {
    const std::string command = "PYTHONPATH='" + kWorkerDirectory + "' '" + python +
                                "' -B -m fp8lab_subjects.recording.torch_memory " + operators + " 3 2>/dev/null > '" +
                                path + "'";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    const TorchRuns runs = read_torch_runs(path);
    ASSERT_EQ(runs.rows.size(), 3U);
    for (const TorchRun& run : runs.rows) expect_close(run);
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace fp8lab

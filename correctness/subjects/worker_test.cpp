#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/run/fake_process.h"
#include "harness/subjects/profile/fsdp2_buffers.h"
#include "support/paths.h"

// The worker of lib/subjects with PyTorch on the host: every instrument finds what a double of a library does wrong,
// and PyTorch trains as this program's runtime does. Skipped if $FP8LAB_SUBJECT_PYTHON (python3) has no PyTorch.
namespace fp8lab {
namespace {

using Json = nlohmann::json;

const std::string kModel =
    "ranks: 2\n"
    "model: {layer: transformer_layer, form: llama, layers: 2, hidden: 64, heads: 4, kv_heads: 2, ffn: 128, seq: 32, "
    "batch: 2}\n";

class Worker : public ::testing::Test {
 protected:
  Worker() {
    ::setenv("FP8LAB_WORKER", paths::kWorkerFolder, 1);
    ::setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
  }

  void SetUp() override {
    sample::Process process({"subjects", "--json"}, directory_.string());
    ASSERT_EQ(process.finish(), 0) << process.errors;
    subjects_ = Json::parse(process.output);
    need("torch");
  }

  void need(const std::string& subject) {
    for (const Json& one : subjects_)
      if (one.at("subject") == subject && !one.at("available").get<bool>())
        GTEST_SKIP() << subject << ": " << one.at("reason").get<std::string>();
  }

  /// Runs a scenario with these top-level lines.
  Json run(const std::string& lines, int code = 0) {
    sample::write(directory_ / "s.yaml", "version: 1\nname: s\ntitle: S\n" + lines);
    return run_file(directory_ / "s.yaml", code);
  }

  Json run_file(const std::filesystem::path& path, int code = 0) {
    sample::Process process({"run", path.string(), "-d", "cpu", "-o", (directory_ / "out").string(), "--jobs", "1"},
                            directory_.string());
    EXPECT_EQ(process.finish(), code) << process.output << process.errors;
    const std::string text = sample::read(directory_ / "out/results.json");
    return text.empty() ? Json::array() : Json::parse(text).at("cells");
  }

  static double metric(const Json& cell, const std::string& arm, const std::string& name) {
    const Json& value = cell.at("arms").at(arm).at("metrics").at(name).at("value");
    return value.is_number() ? value.get<double>() : std::nan("");
  }
  static double more(const Json& cell, const std::string& name) {
    return metric(cell, "before", name) - metric(cell, "after", name);
  }
  static bool notes(const Json& cell, const std::string& arm, const std::string& text) {
    const Json& all = cell.at("arms").at(arm).at("notes");
    return std::any_of(all.begin(), all.end(),
                       [&](const Json& note) { return note.get<std::string>().find(text) != std::string::npos; });
  }

  sample::TemporaryDirectory directory_;
  Json subjects_;
};

/// Gates of both arms that any figure passes: without gates a cell with a before arm is refused.
std::string any(const std::string& metric) {
  return "expect: [{metric: " + metric + ", arm: before, at_least: 0}, {metric: " + metric +
         ", arm: after, at_least: 0}]\n";
}

const std::string kDouble = kModel + "subject: double\n";

TEST_F(Worker, MemoryFindsOneByteAndWhoHoldsIt) {
  const Json cells = run(kDouble +
                         "training: {steps: 2, optimizer: adam, moments: bf16}\nmatrix: {before: [leak_context, "
                         "leak_module]}\nmeasure: [memory]\n" +
                         any("memory.peak_bytes"));
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(metric(cells[0], "after", "memory.retained_bytes"), 0);
  EXPECT_EQ(metric(cells[0], "before", "memory.retained_bytes"), 1);
  EXPECT_EQ(more(cells[0], "memory.by_holder.context"), 1);
  EXPECT_EQ(more(cells[0], "memory.end_of_step_bytes"), 0) << "dropped with the loss";
  const Json& held = cells[0].at("arms").at("before").at("retained_by_holder");
  ASSERT_EQ(held.size(), 1u) << held;
  EXPECT_EQ(held[0].at("bytes"), 1);
  EXPECT_NE(held[0].at("holder").get<std::string>().find("LeakyIdentity"), std::string::npos) << held;
  EXPECT_EQ(more(cells[1], "memory.end_of_step_bytes"), 1);
  EXPECT_EQ(more(cells[1], "memory.by_holder.recipe_state"), 1);
  EXPECT_EQ(more(cells[1], "memory.retained_bytes"), 0);
  // Every byte has a holder, in either arm.
  for (const Json& cell : cells)
    for (const char* arm : {"before", "after"}) EXPECT_EQ(metric(cell, arm, "memory.by_holder.unexplained"), 0);
}

TEST_F(Worker, TrafficFindsOneCollectiveAndAWiderType) {
  const Json cells = run(kDouble +
                         "training: {steps: 2, optimizer: adam, moments: bf16}\n"
                         "matrix: {before: [extra_collective, gather_f32]}\nmeasure: [traffic]\n" +
                         any("traffic.collectives"));
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(more(cells[0], "traffic.collectives"), 1);
  EXPECT_EQ(more(cells[0], "traffic.all_reduce_bytes"), 4);
  EXPECT_EQ(more(cells[0], "traffic.all_gather_bytes"), 0);
  EXPECT_EQ(metric(cells[1], "before", "traffic.all_gather_bytes"),
            2 * metric(cells[1], "after", "traffic.all_gather_bytes"));
  EXPECT_TRUE(notes(cells[1], "before", "all_gather of 147968 B in float32"));
  EXPECT_TRUE(notes(cells[1], "after", "all_gather of 73984 B in bfloat16"));
}

TEST_F(Worker, ParityFindsOneFrozenTensorAndOneRankThatDiffers) {
  const std::string training = "training: {steps: 2, optimizer: adam, learning_rate: 1e-2, moments: bf16, loss: mse}\n";
  const std::string measured = "measure: [parity]\n" + any("parity.weights_moved");
  const Json frozen = run(kDouble + training + "versions: {before: frozen_weights}\n" + measured);
  // Two layers of six tensors: one of twelve stays.
  EXPECT_DOUBLE_EQ(metric(frozen[0], "before", "parity.weights_moved"), 11.0 / 12.0);
  EXPECT_DOUBLE_EQ(metric(frozen[0], "before", "parity.shards_moved"), 11.0 / 12.0);
  EXPECT_EQ(metric(frozen[0], "after", "parity.weights_moved"), 1);
  const Json wrong = run(kDouble + training + "mesh: 2x1\nversions: {before: wrong_rank}\n" + measured);
  EXPECT_EQ(metric(wrong[0], "before", "parity.ranks_equal"), 0);
  EXPECT_EQ(metric(wrong[0], "after", "parity.ranks_equal"), 1);
  EXPECT_EQ(metric(wrong[0], "after", "parity.gathered_equals_unsharded"), 1);
}

TEST_F(Worker, ParityFindsAProductThatReadsStaleWeights) {
  const std::string name = "parity.same_weights_grad_sqnr_db";
  const Json cells = run(kDouble +
                         "training: {steps: 4, optimizer: adam, learning_rate: 1e-2, moments: bf16, loss: mse}\n"
                         "versions: {before: stale_transpose}\nmatrix: {ranks: [1, 2]}\nmeasure: [parity]\n" +
                         any("parity.weights_moved"));
  ASSERT_EQ(cells.size(), 2u);
  for (const Json& cell : cells) {
    EXPECT_LT(metric(cell, "before", name), 6);
    EXPECT_GT(metric(cell, "before", "parity.grad_sqnr_db"), 20) << "the last layers' gradients are larger";
    const Json& after = cell.at("arms").at("after").at("metrics").at(name);
    EXPECT_TRUE(after.at("value").is_null()) << after;
    EXPECT_EQ(after.at("reason"), "no tensor has noise");
  }
}

TEST_F(Worker, PlainTwinFindsDefectsThatBothArmsMayShare) {
  const std::string training = "training: {steps: 2, optimizer: adam, learning_rate: 1e-2, moments: bf16, loss: mse, ";
  struct Case {
    std::string defect, keys, ranks, fault;
  };
  for (const Case& one : {Case{"first_micro_batch", "micro_batches: 2}\n", "1", "after the last step: scale"},
                          Case{"sum_of_ranks", "micro_batches: 1}\n", "2", "its slope on the reference is 2"},
                          Case{"other_recompute", "checkpoint: full}\n", "1", "values differ from the plain twin's"},
                          Case{"stale_transpose", "micro_batches: 1}\n", "1", "values differ from the plain twin's"}}) {
    const Json cells = run(kDouble + training + one.keys + "versions: {before: " + one.defect + "}\nmatrix: {ranks: [" +
                           one.ranks + "]}\nmeasure: [parity]\n" + any("parity.twin_faults"));
    EXPECT_GE(metric(cells[0], "before", "parity.twin_faults"), 1) << one.defect;
    EXPECT_EQ(metric(cells[0], "after", "parity.twin_faults"), 0) << one.defect;
    EXPECT_TRUE(notes(cells[0], "before", one.fault)) << one.defect << cells[0].at("arms").at("before").at("notes");
  }
}

TEST_F(Worker, ControlsOfALibraryFindPlantedChanges) {
  const Json cells =
      run(kDouble + "training: {steps: 2}\nmatrix: {control: [same, planted]}\nmeasure: [memory, traffic]\n" +
          any("memory.peak_bytes"));
  ASSERT_EQ(cells.size(), 2u);
  for (const char* name : {"memory.peak_bytes", "traffic.collectives"}) {
    EXPECT_EQ(more(cells[0], name), 0) << name;
    EXPECT_EQ(more(cells[1], name), 1) << name;
  }
}

/// Processes whose environment has `variable`.
int processes_with(const std::string& variable) {
  int found = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    found += text.find(variable) != std::string::npos;
  }
  return found;
}

TEST_F(Worker, RanksThatEndBadlyEndTheArmAndLeaveNoProcess) {
  const std::string mark = "FP8LAB_TEST_MARK=" + directory_.string();
  ::setenv("FP8LAB_TEST_MARK", directory_.string().c_str(), 1);
  const Json crash = run(kDouble + "training: {steps: 1}\nversions: {after: crash}\nmeasure: [traffic]\n", 4);
  EXPECT_EQ(crash[0].at("arms").at("after").at("signal"), "SIGSEGV");
  const Json raise = run(kDouble + "training: {steps: 1}\nversions: {after: raise}\nmeasure: [traffic]\n", 4);
  EXPECT_NE(raise[0].at("reason").get<std::string>().find("rank 1: ValueError"), std::string::npos) << raise[0];
  const Json hang =
      run(kDouble + "timeout: 12\ntraining: {steps: 1}\nversions: {after: hang}\nmeasure: [traffic]\n", 124);
  EXPECT_EQ(hang[0].at("verdict"), "timeout");
  // The kernel needs a moment for processes that were killed last.
  int left = 1;
  for (int i = 0; i < 100 && left > 0; ++i) {
    left = processes_with(mark);
    if (left > 0) ::usleep(20000);
  }
  EXPECT_EQ(left, 0);
  ::unsetenv("FP8LAB_TEST_MARK");
}

TEST_F(Worker, LossesOfPytorchAreThoseOfTheOwnRuntime) {
  for (const std::string form : {"gpt", "llama"}) {
    const Json cells = run(kModel + "matrix: {subject: [own, torch], form: [" + form +
                           "]}\ntraining: {steps: 20, optimizer: adam, learning_rate: 1e-3, master_weights: f32, loss: "
                           "mse}\nmeasure: [traffic, parity]\nexpect:\n"
                           "  - {metric: traffic.all_gather_bytes, equals: predicted}\n"
                           "  - {metric: traffic.collectives, equals: predicted}\n"
                           "  - {metric: parity.weights_moved, equals: 1}\n");
    ASSERT_EQ(cells.size(), 2u);
    const Json &own = cells[0].at("arms").at("after").at("losses"),
               &torch = cells[1].at("arms").at("after").at("losses");
    ASSERT_EQ(own.size(), 20u);
    ASSERT_EQ(torch.size(), 20u);
    // The loss is the mean of (y - t)^2 over n elements, about 2 since y and t have variance 1. Both sides round y to
    // BF16, by at most 2^-8 of |y| and 2^-8 / sqrt(3) in the mean square, independently of each other at worst: the
    // difference of the means has the deviation 2 sqrt(2) 2^-8 / sqrt(3 n), and 6 of them are allowed. The output is
    // one such rounding, and the residual stream has two a layer.
    const double elements = 2.0 * 32 * 2 * 64, roundings = 1 + 2 * 2;
    const double allowed = 6.0 * 2.0 * std::sqrt(2.0) * 0x1p-8 * std::sqrt(roundings / (3.0 * elements));
    EXPECT_LT(allowed, 1e-3);
    for (std::size_t step = 0; step < own.size(); ++step)
      EXPECT_LE(std::abs(own[step].get<double>() - torch[step].get<double>()), allowed) << form << " step " << step;
  }
}

/// The largest distance of two lists of losses up to each step.
std::vector<double> distances(const Json& a, const Json& b) {
  std::vector<double> out;
  for (std::size_t step = 0; step < a.size(); ++step) {
    const double distance = std::abs(a[step].get<double>() - b[step].get<double>());
    out.push_back(step == 0 || !(distance <= out.back()) ? distance : out.back());
  }
  return out;
}

void write_corpus(const std::filesystem::path& path) {
  std::string text;
  for (int i = 0; text.size() < 4000; i = (7 * i + 5) % 1009) text += "abcdefghijklmnopqrstuvwxyz ,.\n"[i % 30];
  sample::write(path, text);
}

Json losses_of(const Json& cell) { return cell.at("arms").at("after").at("losses"); }

/// Losses of PyTorch may be 16 times as far from the runtime's as the runtime's own are when it adds in another order,
/// and two units in the last place of the loss, near ln 30, if those are not off at all.
void expect_close(const Json& own, const Json& own_in_another_order, const Json& torch, const std::string& what) {
  ASSERT_FALSE(own.empty());
  ASSERT_EQ(own.size(), torch.size());
  const std::vector<double> floor = distances(own, own_in_another_order), off = distances(own, torch);
  for (std::size_t step = 0; step < own.size(); ++step)
    ASSERT_LE(off[step], 16.0 * floor[step] + 2.0 * 4.0 * 0x1p-23) << what << " step " << step;
  EXPECT_LT(floor.back(), 1e-3) << "the bound is too wide";
}

// The same initial weights, batches, schedule, clipping and decay in FP32. Only rounding differs, and training makes
// differences grow; how fast shows in the runtime's own losses when two ranks divide the batch, which adds the same
// gradients in another order. PyTorch adds all its sums in another order.
TEST_F(Worker, ALanguageModelOfPytorchHasTheLossesOfTheOwnRuntime) {
  write_corpus(directory_ / "text");
  for (const std::string form : {"gpt", "llama", "gemma"}) {
    const Json cells = run(
        "model: {layer: transformer_layer, layers: 2, hidden: 64, heads: 4, ffn: 128, seq: 32, vocabulary: 30, "
        "scaled_residuals: true, form: " +
        form +
        "}\ntraining: {steps: 200, optimizer: adam, param_dtype: f32, learning_rate: 2e-3, "
        "learning_rate_schedule: cosine, warmup_steps: 10, final_learning_rate: 1e-4, beta2: 0.99, weight_decay: 0.1, "
        "decay_only_matrices: true, loss: cross_entropy, data: text, tokens: character, corpus: text}\n"
        "matrix:\n  include:\n"
        "    - {subject: own, ranks: 1, batch: 4, clip_norm: 1, head: tied, model.bias: false}\n"
        "    - {subject: own, ranks: 2, batch: 2, clip_norm: 1, head: tied, model.bias: false}\n"
        "    - {subject: torch, ranks: 1, batch: 4, clip_norm: 1, head: tied, model.bias: false}\n"
        "    - {subject: own, ranks: 1, batch: 4, clip_norm: 0, head: own, model.bias: true}\n"
        "    - {subject: own, ranks: 2, batch: 2, clip_norm: 0, head: own, model.bias: true}\n"
        "    - {subject: torch, ranks: 1, batch: 4, clip_norm: 0, head: own, model.bias: true}\n"
        "    - {subject: own, ranks: 1, batch: 4, clip_norm: 1, head: own, model.bias: qkv, head_dim: 24, qk_norm: "
        "true}\n"
        "    - {subject: own, ranks: 2, batch: 2, clip_norm: 1, head: own, model.bias: qkv, head_dim: 24, qk_norm: "
        "true}\n"
        "    - {subject: torch, ranks: 1, batch: 4, clip_norm: 1, head: own, model.bias: qkv, head_dim: 24, qk_norm: "
        "true}\n"
        "measure: [parity]\nexpect: [{metric: parity.weights_moved, equals: 1}]\n");
    ASSERT_EQ(cells.size(), 9u);
    for (const std::size_t first : {0u, 3u, 6u}) {
      const Json own = losses_of(cells[first]);
      ASSERT_EQ(own.size(), 200u);
      EXPECT_LT(own[199].get<double>(), 0.9 * own[0].get<double>()) << "the model learns nothing";
      expect_close(own, losses_of(cells[first + 1]), losses_of(cells[first + 2]), form);
    }
  }
}

/// The key `model` of a mixture of experts, with these keys more.
std::string mixture(const std::string& keys) {
  return "model: {layer: transformer_layer, form: llama, layers: 3, hidden: 64, heads: 4, kv_heads: 2, " + keys +
         "experts: 6, top_k: 2, expert_ffn: 48, seq: 32, vocabulary: 30, scaled_residuals: true, init_std: 0.1}\n";
}

void expect_equal_losses(const Json& cells, std::size_t first, std::size_t other) {
  constexpr double kAllowed = 16 * 0x1p-22;  // units in the last place of losses near 3.8
  const Json own = losses_of(cells[first]), torch = losses_of(cells[other]);
  ASSERT_EQ(own.size(), 10u);
  ASSERT_EQ(torch.size(), 10u);
  EXPECT_LT(own[9].get<double>(), own[0].get<double>() - 0.1) << "the model learns nothing";
  EXPECT_LE(distances(own, torch).back(), kAllowed) << "cells " << first << " and " << other;
}

// In FP32 every token has the experts that the runtime chooses, and only rounding differs. After some tens of steps a
// token with nearly equal scores may have another expert.
TEST_F(Worker, MixturesOfPytorchHaveTheLossesOfTheOwnRuntime) {
  const std::string limited = "router: sigmoid, expert_groups: 3, top_groups: 2, router_bias_rate: 0.01, ";
  const std::string shared = "router: sigmoid, router_scale: 2.5, model.shared_experts: 2, model.dense_layers: 1, ";
  const Json cells =
      run(mixture("ffn: 96, ") +
          "training: {steps: 10, optimizer: adam, param_dtype: f32, learning_rate: 1e-3, loss: cross_entropy}\n"
          "matrix:\n  include:\n"
          "    - {subject: own, ranks: 1, batch: 4}\n"
          "    - {subject: torch, ranks: 1, batch: 4}\n"
          "    - {subject: torch, ranks: 4, batch: 1, reshard_after_forward: false}\n"
          "    - {" +
          shared + "subject: own, ranks: 1, batch: 4}\n    - {" + shared +
          "subject: torch, ranks: 1, batch: 4, checkpoint: full}\n    - {" + shared +
          "subject: torch, ranks: 2, batch: 2, sharding: ddp}\n    - {" + limited +
          "subject: own, ranks: 1, batch: 4}\n    - {" + limited +
          "subject: torch, ranks: 1, batch: 4, checkpoint: full}\n    - {" + limited +
          "subject: torch, ranks: 2, batch: 1, micro_batches: 2, sharding: ddp}\n"
          "measure: [parity]\nexpect: [{metric: parity.weights_moved, equals: 1}]\n");
  ASSERT_EQ(cells.size(), 9u);
  for (const std::size_t first : {0u, 3u, 6u})
    for (const std::size_t other : {first + 1, first + 2}) expect_equal_losses(cells, first, other);
}

// The router's gradient has two terms: of what the chosen experts return, and of the choices that a rank's micro-batch
// made. With one expert a token only the second is there.
TEST_F(Worker, AuxiliaryLossesOfPytorchMoveRoutersAsTheOwnRuntimesDo) {
  const std::string parts = "ranks: 2, batch: 1, micro_batches: 2, router_aux_loss: 0.3}\n";
  const std::string only = "ranks: 1, batch: 4, router_aux_loss: 0.3, model.top_k: 1";
  const std::string biased = "router_aux_loss: 0.3, router: sigmoid, router_bias_rate: 0.01, ";
  const Json cells =
      run(mixture("") +
          "training: {steps: 10, optimizer: adam, param_dtype: f32, learning_rate: 1e-3, loss: cross_entropy}\n"
          "matrix:\n  include:\n    - {subject: own, " +
          parts + "    - {subject: torch, " + parts + "    - {subject: own, " + only + "}\n    - {subject: torch, " +
          only + ", checkpoint: full}\n    - {" + biased +
          "subject: own, ranks: 1, batch: 1, micro_batches: 4}\n    - {" + biased +
          "subject: torch, ranks: 2, batch: 1, micro_batches: 2, sharding: ddp}\n"
          "    - {subject: own, ranks: 2, batch: 1, micro_batches: 2}\n"
          "measure: [parity]\nexpect: [{metric: parity.weights_moved, equals: 1}]\n");
  ASSERT_EQ(cells.size(), 7u);
  for (const std::size_t first : {0u, 2u, 4u}) expect_equal_losses(cells, first, first + 1);
  EXPECT_GT(distances(losses_of(cells[0]), losses_of(cells[6])).back(), 1e-3) << "the auxiliary loss moves nothing";
}

// Without an optimizer that divides by the size of gradients: gradients of experts are means over all ranks. What ranks
// send is equal too, except that here their counts of rows are 8 bytes for each expert, and all-to-alls take them. With
// ten times the auxiliary loss a token of nearly equal scores has another expert in the eighth step.
TEST_F(Worker, ExpertsOfOtherRanksInPytorchHaveTheLossesAndTheTrafficOfTheOwnRuntime) {
  const std::string balanced = "ranks: 4, batch: 1, expert_parallel: 2, router_aux_loss: 0.03, checkpoint: full}\n";
  const Json cells =
      run(mixture("") +
          "training: {steps: 10, optimizer: sgd, param_dtype: f32, learning_rate: 3e-1, loss: cross_entropy}\n"
          "matrix:\n  include:\n"
          "    - {subject: own, ranks: 2, batch: 2, expert_parallel: 2}\n"
          "    - {subject: torch, ranks: 2, batch: 2, expert_parallel: 2}\n"
          "    - {subject: torch, ranks: 4, mesh: 2x2, batch: 1, expert_parallel: 2}\n"
          "    - {subject: own, " +
          balanced + "    - {subject: torch, " + balanced +
          "measure: [traffic, parity]\nexpect: [{metric: parity.weights_moved, equals: 1}]\n");
  ASSERT_EQ(cells.size(), 5u);
  if (cells[1].at("verdict") == "skip") GTEST_SKIP() << cells[1].at("reason").get<std::string>();
  for (const std::size_t other : {1u, 2u}) expect_equal_losses(cells, 0, other);
  expect_equal_losses(cells, 3, 4);
  const auto sent = [&](std::size_t index) { return metric(cells[index], "after", "traffic.all_to_all_bytes"); };
  constexpr double kCounts = 3 * 6 * 8 * 2;  // layers, experts, bytes, ranks
  EXPECT_EQ(sent(1), sent(0) + kCounts);
  EXPECT_EQ(sent(4), sent(3) + 2 * kCounts) << "counted again in backward";
}

// Sinks, windows, limits, and biases of experts and routers. A gate or an up within rounding of the limit can have a
// gradient in one and none in the other, and with a limit of 0.5 one has in the first ten steps.
TEST_F(Worker, LayersOfGptOssInPytorchHaveTheLossesOfTheOwnRuntime) {
  const std::string dense = "model.dense_layers: 2, model.shared_experts: 1, model.bias: qkv, ";
  const Json cells =
      run(mixture("ffn: 96, attention_sinks: true, window: 9, window_every: 2, swiglu_limit: 1, bias: true, ") +
          "training: {steps: 10, optimizer: adam, param_dtype: f32, learning_rate: 1e-3, loss: cross_entropy}\n"
          "matrix:\n  include:\n"
          "    - {subject: own, ranks: 1, batch: 4}\n"
          "    - {subject: torch, ranks: 1, batch: 4}\n"
          "    - {subject: torch, ranks: 2, batch: 2, expert_parallel: 2, checkpoint: full}\n"
          "    - {" +
          dense + "subject: own, ranks: 1, batch: 4}\n    - {" + dense +
          "subject: torch, ranks: 2, batch: 1, micro_batches: 2, sharding: ddp}\n"
          "    - {subject: own, ranks: 1, batch: 4, model.attention_sinks: false}\n"
          "    - {subject: own, ranks: 1, batch: 4, model.window_every: 1}\n"
          "    - {subject: own, ranks: 1, batch: 4, model.swiglu_limit: 7}\n"
          "measure: [parity]\nexpect: [{metric: parity.weights_moved, equals: 1}]\n");
  ASSERT_EQ(cells.size(), 8u);
  expect_equal_losses(cells, 0, 1);
  if (cells[2].at("verdict") != "skip") expect_equal_losses(cells, 0, 2);  // releases before 2.15
  expect_equal_losses(cells, 3, 4);
  for (const std::size_t other : {5u, 6u, 7u})
    EXPECT_GT(distances(losses_of(cells[0]), losses_of(cells[other])).back(), 1e-3) << "a key changes nothing";
}

// Latents, rotated columns that all heads of keys have, and values of another width than the keys'.
TEST_F(Worker, LatentAttentionOfPytorchHasTheLossesOfTheOwnRuntime) {
  const Json cells = run(
      "model: {layer: transformer_layer, form: llama, layers: 2, hidden: 64, heads: 4, head_dim: 12, q_rank: 40, "
      "kv_rank: 24, rope_dim: 6, value_dim: 20, ffn: 96, seq: 32, vocabulary: 30, scaled_residuals: true, init_std: "
      "0.1}\n"
      "training: {steps: 10, optimizer: adam, param_dtype: f32, learning_rate: 1e-3, loss: cross_entropy}\n"
      "matrix:\n  include:\n"
      "    - {subject: own, ranks: 1, batch: 4}\n"
      "    - {subject: torch, ranks: 1, batch: 4}\n"
      "    - {subject: torch, ranks: 2, batch: 2, checkpoint: full}\n"
      "measure: [parity]\nexpect: [{metric: parity.weights_moved, equals: 1}]\n");
  ASSERT_EQ(cells.size(), 3u);
  constexpr double kAllowed = 16 * 0x1p-22;  // units in the last place of losses near 3.8
  const Json own = losses_of(cells[0]);
  ASSERT_EQ(own.size(), 10u);
  EXPECT_LT(own[9].get<double>(), own[0].get<double>() - 0.1) << "the model learns nothing";
  for (const std::size_t other : {1u, 2u}) {
    const Json torch = losses_of(cells[other]);
    ASSERT_EQ(torch.size(), 10u);
    EXPECT_LE(distances(own, torch).back(), kAllowed) << "cell " << other;
  }
}

// Three micro-batches of two sequences hold the tokens of one of six, so they have its losses and its gradients: a mean
// over all tokens. Adam's step does not depend on the size of gradients; with decay added to them it does.
TEST_F(Worker, MicroBatchesOfPytorchAverageAsTheOwnRuntimeDoes) {
  write_corpus(directory_ / "text");
  const Json cells =
      run("model: {layer: transformer_layer, layers: 2, hidden: 64, heads: 4, ffn: 128, seq: 32, vocabulary: 30}\n"
          "training: {steps: 60, optimizer: adam, param_dtype: f32, learning_rate: 2e-3, weight_decay: 0.3, "
          "decoupled_decay: false, loss: cross_entropy, data: text, tokens: character, corpus: text}\n"
          "matrix:\n  include:\n"
          "    - {subject: own, micro_batches: 3, batch: 2}\n"
          "    - {subject: own, micro_batches: 1, batch: 6}\n"
          "    - {subject: torch, micro_batches: 3, batch: 2}\n"
          "measure: [parity]\nexpect: [{metric: parity.weights_moved, equals: 1}]\n");
  ASSERT_EQ(cells.size(), 3u);
  expect_close(losses_of(cells[0]), losses_of(cells[1]), losses_of(cells[2]), "micro-batches");
}

/// The exit status of a Python file that imports the worker.
int status_of(const char* file) {
  const char* named = std::getenv("FP8LAB_SUBJECT_PYTHON");
  const std::string python = named ? named : "python3";
  return std::system((std::string("PYTHONPATH=") + paths::kWorkerFolder + " " + python + " " + file).c_str());
}

TEST_F(Worker, BuffersOfPytorchsFsdp2AreThoseThatProfilesPredict) {
  const std::string rest =
      "subject: torch\nmodel: {layer: transformer_layer, form: llama, layers: 3, hidden: 64, heads: 4, kv_heads: 2, "
      "ffn: "
      "128, seq: 512, batch: 1}\ntraining: {steps: 2, optimizer: none}\nmeasure: [memory]\n";
  const std::int64_t layer_bytes = 2 * (64 * 128 + 64 * 64 + 3 * 64 * 128 + 2 * 64);
  const Json alone = run(rest + "matrix: {ranks: [1], sharding: [none, fsdp]}\n");
  const Json pairs = run(rest + "matrix: {ranks: [2], reshard_after_forward: [true, false]}\n");
  ASSERT_EQ(alone.size() + pairs.size(), 4u);
  const auto beyond = [](const Json& cell, const char* name) {  // the weights themselves
    return metric(cell, "after", name) - metric(cell, "after", "memory.weight_bytes");
  };
  const auto compare = [&](const Json& cell, int ranks, bool reshard) {
    CellConfig config;
    config.model.layers = 3;
    config.ranks = ranks;
    config.sharding = Sharded::kFsdp;
    config.reshard_after_forward = reshard;
    const Fsdp2Buffers buffers(config, layer_bytes, layer_bytes);
    // Eight bytes of some small tensor come with every sharded model.
    EXPECT_NEAR(beyond(cell, "memory.end_of_forward_bytes") - beyond(alone[0], "memory.end_of_forward_bytes"),
                static_cast<double>(3 * buffers.after_forward()), 8);
    EXPECT_NEAR(beyond(cell, "memory.forward_peak_bytes") - beyond(alone[0], "memory.forward_peak_bytes"),
                static_cast<double>(2 * buffers.after_forward() + buffers.in_forward()), 8);
  };
  compare(alone[1], 1, true);
  compare(pairs[0], 2, true);
  compare(pairs[1], 2, false);
}

TEST_F(Worker, ParametersOfTransformerEngineHaveTheNamesOfTheRuntime) { EXPECT_EQ(status_of(paths::kEngineNames), 0); }

TEST_F(Worker, WeightsOfTransformerEngineAreThoseThatFsdpGathers) { EXPECT_EQ(status_of(paths::kGatheredWeights), 0); }

TEST_F(Worker, ValuesAreThoseInsideALibrarysWrappers) {
  const auto file = std::filesystem::path(paths::kGatheredWeights).replace_filename("plain_values_test.py");
  EXPECT_EQ(status_of(file.c_str()), 0);
}

TEST_F(Worker, WhatALibraryDrawsFollowsFromTheSeed) {
  const auto file = std::filesystem::path(paths::kGatheredWeights).replace_filename("training_test.py");
  EXPECT_EQ(status_of(file.c_str()), 0);
}

TEST_F(Worker, FrozenLayersKeepTheirBits_AndTheOthersGetTheirGradients) {
  const auto file = std::filesystem::path(paths::kGatheredWeights).replace_filename("frozen_layers_test.py");
  EXPECT_EQ(status_of(file.c_str()), 0);
}

TEST_F(Worker, ALossInPartsIsTheLossInDouble) {
  const auto file = std::filesystem::path(paths::kGatheredWeights).replace_filename("chunked_loss_test.py");
  EXPECT_EQ(status_of(file.c_str()), 0);
}

TEST_F(Worker, AMixtureOfExpertsIsItsDefinitionInDouble) {
  const auto file = std::filesystem::path(paths::kGatheredWeights).replace_filename("experts_test.py");
  EXPECT_EQ(status_of(file.c_str()), 0);
}

TEST_F(Worker, TorchaosProductsOfExpertsAreTheirDefinition_AndGroupsArePadded) {
  const auto file = std::filesystem::path(paths::kGatheredWeights).replace_filename("torchao/experts_test.py");
  EXPECT_EQ(status_of(file.c_str()), 0);
}

TEST_F(Worker, LanguageModelsOfTransformerEngineAreTheirDefinitionInDouble) {
  const auto file = std::filesystem::path(paths::kGatheredWeights).replace_filename("engine/model_test.py");
  EXPECT_EQ(status_of(file.c_str()), 0);
}

TEST_F(Worker, AttentionOverDividedSequencesIsItsDefinitionInDouble) {
  const auto file = std::filesystem::path(paths::kGatheredWeights).replace_filename("sequence_ring_test.py");
  EXPECT_EQ(status_of(file.c_str()), 0);
}

TEST_F(Worker, LayersOfGptOssAreTheirDefinitionInDouble) {
  const auto file = std::filesystem::path(paths::kGatheredWeights).replace_filename("recording/gpt_oss_model_test.py");
  EXPECT_EQ(status_of(file.c_str()), 0);
}

// FSDP2 over one shard hands out the parameters themselves, in torchao's class.
TEST_F(Worker, ParityOfTorchaoHoldsOverOneShard) {
  need("torchao");
  if (IsSkipped()) return;
  const Json cells =
      run("subject: torchao\nmodel: {layer: layernorm_mlp, layers: 1, hidden: 64, ffn: 128, seq: 32, bias: false}\n"
          "training: {steps: 2, optimizer: adam, master_weights: f32, learning_rate: 1e-2, loss: mse, recipe: current, "
          "quantized_weights: true}\n"
          "matrix:\n  include: [{ranks: 1, sharding: fsdp}, {mesh: 2x1, ranks: 2}, {mesh: 1x2, ranks: 2}]\nmeasure: "
          "[parity]\n");
  ASSERT_EQ(cells.size(), 3u);
  for (const Json& cell : cells)
    for (const char* name : {"parity.weights_moved", "parity.gathered_equals_unsharded"})
      EXPECT_EQ(metric(cell, "after", name), 1) << name;
  // The same training: sums of two gradients differ by their order at most. Other memory is 16 dB away.
  EXPECT_NEAR(metric(cells[1], "after", "parity.weight_sqnr_db"), metric(cells[2], "after", "parity.weight_sqnr_db"),
              0.5);
  EXPECT_GT(metric(cells[0], "after", "parity.weight_sqnr_db"), metric(cells[2], "after", "parity.weight_sqnr_db") - 6);
}

TEST_F(Worker, BundledScenariosOfTorchaoPass) {
  need("torchao");
  if (IsSkipped()) return;
  for (const char* name : {"torchao-experts.yaml", "torchao-float8-gather.yaml", "torchao-uneven-shards.yaml"}) {
    const Json cells = run_file(std::filesystem::path(paths::kSubjectScenarios) / name);
    for (const Json& cell : cells) EXPECT_EQ(cell.at("verdict"), "pass") << cell.at("reason");
  }
}

}  // namespace
}  // namespace fp8lab

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/cell/sharding_keys.h"
#include "harness/results/compare/compare.h"
#include "harness/run/fake_process.h"
#include "harness/subjects/profile/memory_profile.h"
#include "harness/subjects/profile/recorded_layers.h"
#include "support/error_of.h"
#include "support/paths.h"

// The bundled profiles of libraries' memory, compared with what was measured on a GPU.
namespace fp8lab {
namespace {

/// How far figures are from what was measured.
struct Distances {
  int rows = 0;
  double worst_end_of_forward = 0, worst_peak = 0;
};

/// What PyTorch's allocator may hold beyond the tensors of a cell: it leaves up to a MiB behind a large block unsplit.
/// Only the runs that made the profile have sizes that leave such rests. A weight has one block, or two of FP8, and one
/// for its gradient.
double unsplit_bytes(const CellConfig& cell, std::string_view name) {
  if (!cell.scenario.starts_with("transformer-engine-profile")) return 0.0;
  const int weights = cell.model.layers * (cell.model.layer == "linear"          ? 1
                                           : cell.model.layer == "layernorm_mlp" ? 2
                                                                                 : 4);
  const int blocks = (cell.training.quantized_weights ? 2 : 1) + (name == "memory.end_of_step_bytes" ? 0 : 1);
  return 1048576.0 * weights * blocks;
}

/// Compares the figures of an arm with what was measured; `output` bytes of the measurement are the worker's own, and
/// its peak is not compared then.
void add_distances(const CellRecord& record, const ArmResult& result, const std::map<std::string, double>& figures,
                   Distances& distances, double output = 0.0) {
  ++distances.rows;
  std::vector<const char*> names{"memory.end_of_forward_bytes", "memory.end_of_backward_bytes",
                                 "memory.end_of_step_bytes"};
  if (figures.contains("memory.optimizer_peak_bytes") && (output == 0.0 || is_sharded(record.config)))
    names.push_back("memory.optimizer_peak_bytes");
  if (output == 0.0) names.push_back("memory.peak_bytes");
  for (const char* name : names) {
    const double expected = result.metrics.at(name).value.value() - output;
    const double off = std::abs(figures.at(name) - expected) / expected;
    EXPECT_LT(std::abs(figures.at(name) - expected), 0.01 * expected + unsplit_bytes(record.config, name))
        << record.config.id << " " << name << ": " << figures.at(name) << " for " << expected;
    if (std::string_view(name) == "memory.end_of_forward_bytes")
      distances.worst_end_of_forward = std::max(distances.worst_end_of_forward, off);
    if (std::string_view(name) == "memory.peak_bytes") distances.worst_peak = std::max(distances.worst_peak, off);
  }
}

void print(const std::map<std::string, Distances>& seen) {
  for (const auto& [scenario, distances] : seen) {
    testing::Test::RecordProperty(scenario, distances.rows);
    std::printf("%s: %d rows, end of forward off by at most %.3f %%, peak %.3f %%\n", scenario.c_str(), distances.rows,
                100 * distances.worst_end_of_forward, 100 * distances.worst_peak);
  }
}

/// True if NVTE_TORCH_COMPILE decides what the arm allocates: GELU with its bias in 16 bits, dropout with the residual.
bool uses_compiled_functions(const CellConfig& cell, Arm arm) {
  const bool bf16 = arm == Arm::kBf16 || cell.training.recipe == "bf16";
  return cell.model.form == "gpt" &&
         (cell.model.layer == "transformer_layer" || (cell.model.layer == "layernorm_mlp" && bf16));
}

/// Compares runs on GPUs, among them sharded ones, whose sizes differ from the runs that made the profile. Older
/// runs were measured by a worker that kept the output, two bytes a token and column, and made an FP64 copy of it: the
/// output is subtracted, and their peaks are not compared, since the copy may be part of them. These sets were measured
/// with NVTE_TORCH_COMPILE=0, so layers that use compiled functions are left out.
TEST(BundledProfile, PredictsWhatWasMeasuredWithinOnePercent) {
  const std::set<std::string> now{"transformer-engine-memory", "transformer-engine-memory-8b",
                                  "transformer-engine-memory-micro-batches", "transformer-engine-profile",
                                  "transformer-engine-profile-losses"};
  const std::set<std::string> before{"transformer-engine-memory-releases", "transformer-engine-fsdp2-copies",
                                     "transformer-engine-memory-fsdp2"};
  std::map<std::string, Distances> seen;
  for (const char* set : {"x1-te-h100", "x2-te-h100", "x2-te-fsdp2-h100", "x2-te-h200"})
    for (const CellRecord& record : load_run(std::string(paths::kMeasured) + "/" + set).cells) {
      const bool held_output = before.count(record.config.scenario) > 0 && std::string_view(set) != "x2-te-h200";
      if (now.count(record.config.scenario) + before.count(record.config.scenario) == 0) continue;
      const double output = held_output
                                ? 2.0 * static_cast<double>(record.config.model.seq * record.config.model.batch *
                                                            record.config.model.hidden)
                                : 0.0;
      for (const auto& [arm, result] : record.arms) {
        if (uses_compiled_functions(record.config, arm)) continue;
        const auto profile = MemoryProfile::find(paths::kProfiles, record.config, arm);
        ASSERT_TRUE(profile) << record.config.id;
        add_distances(record, result, profile->estimate(record.config, arm).figures, seen[record.config.scenario],
                      output);
      }
    }
  print(seen);
  EXPECT_EQ(seen["transformer-engine-memory"].rows, 39);
  EXPECT_EQ(seen["transformer-engine-memory-8b"].rows, 26);
  EXPECT_EQ(seen["transformer-engine-memory-micro-batches"].rows, 12);
  EXPECT_EQ(seen["transformer-engine-memory-fsdp2"].rows, 15);
}

/// 2.13.0 to 2.20.2 at their default settings on H200, whose layers in form gpt use compiled functions. A BF16 layer in
/// form gpt is refused under recomputation.
TEST(BundledProfile, PredictsTheDefaultSettingWithinOnePercent) {
  std::map<std::string, Distances> seen;
  int refused = 0;
  for (const CellRecord& record : load_run(std::string(paths::kMeasured) + "/x2-te-default-h200").cells) {
    const std::string& scenario = record.config.scenario;
    if (!scenario.starts_with("transformer-engine-memory") && !scenario.starts_with("transformer-engine-profile"))
      continue;
    for (const auto& [arm, result] : record.arms) {
      const auto profile = MemoryProfile::find(paths::kProfiles, record.config, arm);
      ASSERT_TRUE(profile) << record.config.id;
      const auto figures = profile->figures_if_covered(record.config, arm);
      if (figures.empty()) {
        EXPECT_TRUE(record.config.training.checkpoint == Recompute::kFull &&
                    uses_compiled_functions(record.config, arm))
            << record.config.id;
        ++refused;
        continue;
      }
      add_distances(record, result, figures, seen[scenario]);
    }
  }
  print(seen);
  EXPECT_EQ(refused, 13);
  const std::map<std::string, int> rows{{"transformer-engine-memory", 18},
                                        {"transformer-engine-memory-newest", 18},
                                        {"transformer-engine-memory-gpt", 19},
                                        {"transformer-engine-memory-micro-batches", 12},
                                        {"transformer-engine-memory-micro-batches-newest", 12},
                                        {"transformer-engine-memory-fsdp2", 22},
                                        {"transformer-engine-memory-fsdp2-newest", 4},
                                        {"transformer-engine-memory-of-2-13", 4},
                                        {"transformer-engine-memory-of-2-14", 4},
                                        {"transformer-engine-memory-of-2-16", 4},
                                        {"transformer-engine-profile", 78},
                                        {"transformer-engine-profile-gpt", 13},
                                        {"transformer-engine-profile-losses", 4}};
  for (const auto& [scenario, count] : rows) EXPECT_EQ(seen[scenario].rows, count) << scenario;
}

/// Six Llama-3 8B layers of 2 x 4096 tokens over two ranks, trained by a loop of another program, MiB of rank 0.
TEST(BundledProfile, PredictsTheLoopOfAnotherProgramWithinOnePercent) {
  CellConfig cell;
  cell.model = {.layer = "transformer_layer", .form = "llama"};
  cell.model.layers = 6;
  cell.model.hidden = 4096;
  cell.model.heads = 32;
  cell.model.kv_heads = 8;
  cell.model.ffn = 14336;
  cell.model.seq = 4096;
  cell.model.batch = 2;
  cell.ranks = 2;
  cell.gather_ahead = true;
  cell.training.recipe = "delayed";
  cell.training.steps = 3;
  cell.training.optimizer = Optimizer::kAdam;
  cell.training.master_weights = Master::kF32;
  struct Row {
    const char* release;
    Arm arm;
    double end_of_forward, peak;
  };
  for (const Row& row : {Row{"2.15.0", Arm::kBf16, 15302.7, 16758.7}, Row{"2.16.1", Arm::kBf16, 15302.7, 16758.7},
                         Row{"2.15.0", Arm::kAfter, 17126.8, 19146.4}, Row{"2.16.1", Arm::kAfter, 14630.8, 16706.4}}) {
    const auto figures = MemoryProfile::find(paths::kProfiles, std::string("transformer_engine@") + row.release)
                             .estimate(cell, row.arm)
                             .figures;
    EXPECT_NEAR(figures.at("memory.end_of_forward_bytes") / 1048576, row.end_of_forward, 0.01 * row.end_of_forward);
    EXPECT_NEAR(figures.at("memory.peak_bytes") / 1048576, row.peak, 0.01 * row.peak) << row.release;
    std::printf("%s: %.1f for %.1f, peak %.1f for %.1f MiB\n", row.release,
                figures.at("memory.end_of_forward_bytes") / 1048576, row.end_of_forward,
                figures.at("memory.peak_bytes") / 1048576, row.peak);
  }
}

/// A record of layers, and what the test counts in it.
struct RecordOfLayers {
  std::string_view file, release;
  /// NCCL still held the first step's bucket, as large as all gradients, when the second step's backward began; or, in
  /// a program whose figures contain it (lib/harness/eager), had freed it.
  std::string_view other_bucket;
  int figures, within;        ///< ends of forward and peaks; those that are less than 1 % off
  double most, most_of_ends;  ///< how far ends of forward and peaks are off, and ends of backward and of the step
};

/// Compares a record with the profile. What the library cannot run is refused.
void compare_record(const RecordOfLayers& record) {
  const LayerRecord read =
      read_layer_record(fmt::format("{}/../measured/te-memory-cuda{}.json", paths::kProfiles, record.file));
  const MemoryProfile profile =
      MemoryProfile::find(paths::kProfiles, fmt::format("transformer_engine@{}", record.release));
  EXPECT_EQ(read.release, record.release);
  int compared = 0, within = 0;
  double worst = 0.0, worst_of_ends = 0.0, most_reserved = 0.0;
  for (const RecordedLayers& run : read.runs) {
    const std::string& name = run.name;
    const auto figures = profile.figures_if_covered(run.cell, Arm::kAfter);
    if (!run.error.empty()) {
      EXPECT_TRUE(figures.empty()) << name << " fails: " << run.error;
      continue;
    }
    ASSERT_FALSE(figures.empty()) << name;
    if (const auto all = run.bytes.find("memory.reserved_peak_bytes"); all != run.bytes.end()) {
      const double reserved = all->second / run.bytes.at("memory.peak_bytes");
      EXPECT_LT(reserved, kMostReserved) << name;
      most_reserved = std::max(most_reserved, reserved);
    }
    const auto off_of = [&](const char* figure) {
      const std::string metric = fmt::format("memory.{}_bytes", figure);
      const double measured = run.bytes.at(metric);
      double predicted = figures.at(metric);
      if (name == record.other_bucket && std::string_view(figure) == "peak") {
        EXPECT_GT(std::abs(measured - predicted), 0.05 * predicted) << "the bucket makes no difference";
        const double bucket = figures.at("memory.end_of_backward_bytes") - figures.at("memory.end_of_step_bytes");
        predicted += run.cell.model.vocabulary > 0 ? -bucket : bucket;
      }
      return std::abs(predicted - measured) / measured;
    };
    for (const char* figure : {"end_of_forward", "peak"}) {
      const double off = off_of(figure);
      EXPECT_LT(off, record.most) << name << " " << figure;
      worst = std::max(worst, off);
      within += off < 0.01 ? 1 : 0;
      ++compared;
    }
    for (const char* figure : {"end_of_backward", "end_of_step"}) {
      const double off = off_of(figure);
      EXPECT_LT(off, record.most_of_ends) << name << " " << figure;
      worst_of_ends = std::max(worst_of_ends, off);
    }
  }
  std::printf("%s: %d figures, %d within 1 %%, worst %.2f %%, ends of backward and of the step %.2f %%\n",
              std::string(record.release).c_str(), compared, within, 100 * worst, 100 * worst_of_ends);
  EXPECT_EQ(compared, record.figures);
  EXPECT_EQ(most_reserved > 1.2, !record.file.empty()) << "the record of the newest release has live bytes only";
  EXPECT_GE(within, record.within);
}

/// Layers on one H200: sharded FP8 weights, micro-batches, recomputation, shards that do not divide rows, and
/// DistributedDataParallel, as rank 0 of groups that move nothing. Tensors have the predicted bytes; the allocator
/// leaves up to a MiB behind a block of 1 to 11 MiB, of which small shards have many.
TEST(BundledProfile, PredictsRecordedLayersOfTheNewestRelease) {
  compare_record({"", "2.20.2", "ddp.current", 130, 118, 0.014, 0.022});
}

/// The same on one H200 for the two ends of the releases before 2.13, with every kind of layer on one GPU. All bytes of
/// the two are equal, except what NCCL held.
TEST(BundledProfile, PredictsRecordedLayersOfEarlierReleases) {
  compare_record({"-2.9", "2.9.0", "ddp.delayed", 152, 152, 0.01, 0.014});
  compare_record({"-2.12", "2.12.0", "ddp-twice.bf16", 152, 152, 0.01, 0.014});
}

/// Language models around the same layers with 2.20.2 on one H200, predicted before they were measured. Weights of FP8
/// have one block for both orientations in the prediction, and two in the library, of which the allocator rounds each
/// up.
TEST(BundledProfile, PredictsRecordedLanguageModels) {
  compare_record({"-language", "2.20.2", "lm-ddp.current", 76, 76, 0.005, 0.012});
}

TEST(BundledProfile, ARecordWithoutAFigureIsRefusedWithItsPlace) {
  const std::string path = ::testing::TempDir() + "record-without-a-figure.json";
  const std::string head =
      R"({"schema": "fp8lab.te-memory/1", "subject": "transformer_engine", "measured": "on GPU, transformer_engine 2.9.0", )"
      R"("keys": {"model.hidden": 64}, "rows": [{"name": "a", "keys": {}, "bytes": {"end_of_forward": 8)";
  const auto error_of_rest = [&](const std::string& rest) {
    std::ofstream(path) << head << rest;
    return support::error_of([&] { read_layer_record(path); });
  };
  EXPECT_EQ(error_of_rest(R"(, "peak": 9}}]})"), "");
  for (const char* rest : {R"(}}]})", R"(, "peak": 0}}]})", R"(, "peak": "9"}}]})"}) {
    const std::string error = error_of_rest(rest);
    EXPECT_NE(error.find(path), std::string::npos) << rest << error;
    EXPECT_NE(error.find("peak"), std::string::npos) << rest << error;
  }
}

TEST(BundledProfile, AnswersForEveryReleaseOfItsRangeOrSaysWhyNot) {
  CellConfig cell;
  cell.model.layer = "transformer_layer";
  cell.training.recipe = "current";
  const auto refusal = [&](const std::string& release) {
    return support::error_of(
        [&] { MemoryProfile::find(paths::kProfiles, "transformer_engine@" + release).estimate(cell, Arm::kAfter); });
  };
  for (const char* form : {"llama", "gpt"})
    for (int minor = 9; minor <= 20; ++minor) {
      cell.model.form = form;
      EXPECT_EQ(refusal("2." + std::to_string(minor)), "") << form << " " << minor;
    }
  cell.model.form = "llama";
  cell.training.optimizer = Optimizer::kAdam;
  cell.training.quantized_weights = true;
  const std::string error = refusal("2.13.0");
  EXPECT_NE(error.find("training.optimizer: transformer_engine 2.13.0: its FusedAdam fails"), std::string::npos)
      << error;
  EXPECT_NE(refusal("2.12").find("no run before 2.13 had FP8 weights and FusedAdam"), std::string::npos);
  EXPECT_EQ(refusal("2.14.1"), "");
  cell.training.quantized_weights = false;
  cell.training.moments = Moments::kBF16;
  EXPECT_NE(refusal("2.12").find("FP32 copies of all BF16 moments"), std::string::npos);
  EXPECT_EQ(refusal("2.13"), "");
}

}  // namespace
}  // namespace fp8lab

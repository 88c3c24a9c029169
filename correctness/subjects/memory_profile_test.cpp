#include "harness/subjects/profile/memory_profile.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <variant>

#include "core/check.h"
#include "harness/cell/keys.h"
#include "harness/run/fake_process.h"
#include "harness/subjects/modelled_keys.h"
#include "support/error_of.h"

// Profiles of libraries' memory: what they predict, compared with what was measured on a GPU, and how they are read.
namespace fp8lab {
namespace {

/// A layer that saves 10 bytes for each token and element, and needs 4 bytes for an element of its weight in backward.
const std::string kProfile = R"({"schema": "fp8lab.memory-profile/3", "subject": "torch", "first": "2.4", "last": "2.6",
 "compared": "by hand", "keeps_sharded_copies_until": "2.5", "arch": "hopper", "measured": "by hand", "scratch": 1000,
 "differs": [{"first": "2.4", "last": "2.4", "cells": {"training.master_weights": "f32"}, "reason": "it is made up"}],
 "losses": {"sum": {"held": {}, "forward": {"bytes": 8, "tokens*hidden": -2}, "forward_moments": [{"workspace": {"bytes": 16}}],
  "kept": {"bytes": 8}, "backward": {"tokens": 2}, "surplus": {}, "backward_moments": [{"workspace": {"tokens": 2}}]},
  "mse": {"held": {"tokens*hidden": 2}, "forward": {"bytes": 8}, "forward_moments": [{"workspace": {"tokens*hidden": 90}}],
  "kept": {"bytes": 8}, "backward": {"tokens": 2}, "surplus": {}, "backward_moments": []}},
 "rows": [{"layer": "linear", "form": "gpt", "recipe": "bf16",
 "quantized_weights": false, "weights": [{"hidden*hidden": 1}], "vectors": {"hidden": 1}, "bytes_of_weight": 2,
 "adam": {"all": 1, "largest": 3, "last": 2}, "state": 5, "before": {"seq": 1}, "first_layer": {"bytes": 7}, "forward": {"context": {"tokens*hidden": 10}},
 "forward_moments": [{"workspace": {"tokens*hidden": 12}}],
 "backward": {"context": {"tokens*hidden": -10}, "gradient": {"hidden*hidden": 2, "hidden": 2}},
 "backward_moments": [{"workspace": {"hidden*hidden": 4}}], "spread_moments": [{"workspace": {"hidden*hidden": 5}}]}]})";

CellConfig small_cell() {
  CellConfig cell;
  cell.model.layer = "linear";
  cell.model.form = "gpt";
  cell.model.layers = 3;
  cell.model.hidden = 100;
  cell.model.seq = 4;
  cell.model.batch = 5;
  cell.training.recipe = "bf16";
  return cell;
}

class MemoryProfiles : public ::testing::Test {
 protected:
  MemoryProfile written(const std::string& text) {
    sample::write(directory_ / "profiles/p.json", text);
    return MemoryProfile::read((directory_ / "profiles/p.json").string());
  }
  static std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  }
  /// The estimate of the release "torch@2.5" by the profile that was written last.
  Estimate of_release(const char* release, const CellConfig& cell) const {
    return MemoryProfile::find((directory_ / "profiles").string(), release).estimate(cell, Arm::kAfter);
  }
  std::string refusal(const std::string& text) {
    return support::error_of([&] { written(text); });
  }

  sample::TemporaryDirectory directory_;
};

bool names(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(MemoryProfiles, FiguresAreThoseThatASchedulePaidByHandHas) {
  const auto at = [](const Estimate& estimate, const char* name) { return estimate.figures.at(name); };
  const MemoryProfile profile = written(kProfile);
  CellConfig cell = small_cell();
  // 3 layers of 100 x 100 weights and 100 biases in 2 bytes, 3 x 5 of state, an input of 20 x 100 in 2 bytes, scratch.
  const double base = 3 * (2 * 10000 + 2 * 100) + 15 + 4000 + 1000;
  const double end_of_forward = base + 4 + 7 + 3 * 20000 + 8 - 4000;             // the loss is there, the output is not
  const double last = end_of_forward + 40 + 40000;                               // backward of the last layer
  const double first = end_of_forward + 40 + 40000 + 2 * (20000 + 200 - 20000);  // backward of the first
  const Estimate plain = profile.estimate(cell, Arm::kAfter);
  EXPECT_EQ(at(plain, "memory.end_of_forward_bytes"), end_of_forward);
  EXPECT_EQ(at(plain, "memory.forward_peak_bytes"), base + 4 + 7 + 2 * 20000 + 24000);
  EXPECT_EQ(at(plain, "memory.peak_bytes"), first);
  EXPECT_GT(first, last);
  EXPECT_EQ(plain.peak_phase, "backward");
  double owners = 0;
  for (const auto& [owner, bytes] : plain.peak_by_owner) owners += static_cast<double>(bytes);
  EXPECT_EQ(owners, first);

  cell.training.optimizer = Optimizer::kAdam;
  cell.training.master_weights = Master::kF32;
  cell.training.steps = 2;
  const Estimate adam = profile.estimate(cell, Arm::kAfter);
  EXPECT_EQ(at(adam, "memory.end_of_forward_bytes"), end_of_forward + 3 * 10100 * 12);
  EXPECT_EQ(at(adam, "memory.optimizer_peak_bytes"),
            base + 3 * 10100 * 12 + 8 + 3 * 20200 + 1 * 3 * 10000 + 3 * 10000 + 2 * 10000);

  // The only step's forward and backward precede the optimizer's first step, which makes its state.
  cell.training.steps = 1;
  const Estimate first_step = profile.estimate(cell, Arm::kAfter);
  EXPECT_EQ(at(first_step, "memory.end_of_forward_bytes"), end_of_forward);
  EXPECT_EQ(at(first_step, "memory.end_of_backward_bytes"), at(plain, "memory.end_of_backward_bytes"));
  EXPECT_EQ(at(first_step, "memory.optimizer_peak_bytes"), at(adam, "memory.optimizer_peak_bytes"));
  EXPECT_EQ(at(first_step, "memory.end_of_step_bytes"), at(adam, "memory.end_of_step_bytes"));
  EXPECT_EQ(at(first_step, "memory.forward_by_holder.optimizer_state"), 0.0);

  cell.training.optimizer = Optimizer::kNone;
  cell.training.checkpoint = Recompute::kFull;
  const Estimate recomputed = profile.estimate(cell, Arm::kAfter);
  EXPECT_EQ(at(recomputed, "memory.end_of_forward_bytes"), base + 4 + 2 * 4000 + 8);
  EXPECT_EQ(at(recomputed, "memory.peak_bytes"),
            base + 4 + 2 * 4000 + 8 + 40 + 20000 - 4000 + 40000 + 2 * (20200 - 4000));
}

TEST_F(MemoryProfiles, ALossHasItsOwnTerms) {
  const auto at = [](const Estimate& estimate, const char* name) { return estimate.figures.at(name); };
  const MemoryProfile profile = written(kProfile);
  CellConfig cell = small_cell();
  const Estimate sum = profile.estimate(cell, Arm::kAfter);
  cell.training.loss = Loss::kMse;
  const Estimate mse = profile.estimate(cell, Arm::kAfter);
  // A target, and the output, which lives until backward.
  EXPECT_EQ(at(mse, "memory.end_of_forward_bytes") - at(sum, "memory.end_of_forward_bytes"), 4000 + 4000);
  EXPECT_EQ(at(mse, "memory.forward_by_holder.input") - at(sum, "memory.forward_by_holder.input"), 4000);
  // The loss's temporaries make the highest moment: the output is still there, the loss is not.
  EXPECT_EQ(at(mse, "memory.peak_bytes"), at(mse, "memory.end_of_forward_bytes") - 8 + 90 * 2000);
  EXPECT_EQ(mse.peak_phase, "forward");
  cell.training.keep_loss = false;
  EXPECT_EQ(
      at(mse, "memory.end_of_backward_bytes") - at(profile.estimate(cell, Arm::kAfter), "memory.end_of_backward_bytes"),
      8);
}

TEST_F(MemoryProfiles, ALayerThatIsGivenOneNumberAsGradientHasItsOwnMoments) {
  const std::string text = replaced(kProfile, "\"surplus\": {}", "\"surplus\": {\"tokens*hidden\": 2}");
  CellConfig cell = small_cell();
  cell.model.layers = 1;
  const auto peak = [&](const std::string& profile) {
    return written(profile).estimate(cell, Arm::kAfter).figures.at("memory.peak_bytes");
  };
  // The only layer is the last one: it has the higher moment, and what it leaves is no part of that.
  EXPECT_EQ(peak(text) - peak(kProfile), 10000);
  // If there are three layers, the last one still has the highest moment. Without the surplus the first layer has it, 2
  // * 200 bytes above the last layer's, which the two layers behind it left.
  cell.model.layers = 3;
  EXPECT_EQ(peak(text) - peak(kProfile), 10000 - 2 * 200);
  // A surplus that exceeds the difference of the moments puts the peak into the first layer.
  EXPECT_EQ(peak(replaced(kProfile, "\"surplus\": {}", "\"surplus\": {\"tokens*hidden\": 6}")) - peak(kProfile), 12000);
}

TEST_F(MemoryProfiles, MicroBatchesAfterTheFirstFindItsGradients) {
  const auto at = [](const Estimate& estimate, const char* name) { return estimate.figures.at(name); };
  const MemoryProfile profile = written(kProfile);
  CellConfig cell = small_cell();
  const Estimate one = profile.estimate(cell, Arm::kAfter);
  cell.training.micro_batches = 3;
  const Estimate three = profile.estimate(cell, Arm::kAfter);
  EXPECT_EQ(at(three, "memory.end_of_forward_bytes") - at(one, "memory.end_of_forward_bytes"), 3 * 20200);
  EXPECT_EQ(at(three, "memory.end_of_backward_bytes"), at(one, "memory.end_of_backward_bytes"));
  // All gradients, and the highest layer is the last.
  EXPECT_EQ(at(three, "memory.peak_bytes"), at(three, "memory.end_of_forward_bytes") + 40 + 40000);
}

TEST_F(MemoryProfiles, ReleasesThatDifferAreRefusedWithTheReason) {
  written(kProfile);
  CellConfig cell = small_cell();
  const auto refusal = [&](const char* release) { return support::error_of([&] { of_release(release, cell); }); };
  EXPECT_EQ(refusal("torch@2.4"), "");
  cell.training.master_weights = Master::kF32;
  EXPECT_EQ(refusal("torch@2.4.1"), "training.master_weights: torch 2.4.1: it is made up");
  EXPECT_EQ(refusal("torch@2.5"), "");
}

TEST_F(MemoryProfiles, FiguresBelowNothingAreRefusedWithFileAndRow) {
  EXPECT_TRUE(
      names(refusal(replaced(kProfile, "\"weights\": [{\"hidden*hidden\": 1", "\"weights\": [{\"hidden*hidden\": -1")),
            "p.json: `rows[0].weights[0].\"hidden*hidden\"` must be a number of at least 0"));
  EXPECT_TRUE(names(refusal(replaced(kProfile, "\"all\": 1", "\"all\": -1")), "`rows[0].adam.all` must be"));
  EXPECT_TRUE(names(
      refusal(replaced(kProfile, "{\"context\": {\"tokens*hidden\": 10}}", "{\"context\": {\"tokens*hidden\": -10}}")),
      "must be a number of at least 0"));
  EXPECT_TRUE(names(refusal(replaced(kProfile, "\"tokens*hidden\": -2}", "\"tokens*hidden\": -9}")), "at least -2"));
  // A negative term may be right; a negative figure is not.
  const MemoryProfile profile = written(replaced(kProfile, "{\"bytes\": 7}", "{\"bytes\": -9e8}"));
  try {
    profile.estimate(small_cell(), Arm::kAfter);
    ADD_FAILURE() << "figures are below nothing";
  } catch (const Error& error) {
    EXPECT_TRUE(names(error.what(), "p.json: `rows[0]`: its terms make memory.")) << error.what();
  }
}

TEST_F(MemoryProfiles, ShardedLayersHaveFsdp2sBuffersAtTheirPeaks) {
  const auto figure = [&](const CellConfig& cell, const char* name) {
    return written(kProfile).estimate(cell, Arm::kAfter).figures.at(name);
  };
  CellConfig cell = small_cell();
  cell.ranks = 2;
  // As above, with half of all parameters. A layer's parameters are 20,200 bytes.
  const double half = 3 * 10100 + 15 + 4000 + 1000 + 4 + 7 + 3 * 20000 + 8 - 4000;
  EXPECT_EQ(figure(cell, "memory.end_of_forward_bytes"), half);
  EXPECT_EQ(figure(cell, "memory.end_of_backward_bytes"), 2 * 3 * 10100 + 15 + 4000 + 1000 + 8);
  // In the second layer of backward: its parameters, the next layer's gather and the last layer's gradients.
  EXPECT_EQ(figure(cell, "memory.peak_bytes"), half + 40 + 40000 + (10100 - 20000) + 3 * 20200);
  cell.mesh = "2x2";
  cell.ranks = 4;
  EXPECT_EQ(figure(cell, "memory.peak_bytes"), half + 40 + 40000 + (10100 - 20000) + 3 * 20200);

  // All three layers stay gathered, and so nothing is gathered in backward.
  cell.reshard_after_forward = false;
  EXPECT_EQ(figure(cell, "memory.end_of_forward_bytes"), half + 3 * 20200);
  EXPECT_EQ(figure(cell, "memory.forward_by_holder.unsharded"), 3 * 20200);
  EXPECT_EQ(figure(cell, "memory.peak_bytes"), half + 40 + 40000 + 3 * 20200);

  // One rank gathers nothing; its peak is in the first layer.
  CellConfig alone = small_cell();
  alone.sharding = Sharded::kFsdp;
  const double entire = 3 * 20200 + 15 + 4000 + 1000 + 4 + 7 + 3 * 20000 + 8 - 4000;
  EXPECT_EQ(figure(alone, "memory.end_of_forward_bytes"), entire);
  EXPECT_EQ(figure(alone, "memory.peak_bytes"), entire + 40 + 40000 + 2 * (20200 - 20000) + 2 * 20200);
}

TEST_F(MemoryProfiles, ShardedLayersAddShardsOfGradients) {
  const MemoryProfile profile = written(kProfile);
  CellConfig cell = small_cell();
  cell.ranks = 2;
  cell.training.micro_batches = 2;
  const auto figures = profile.estimate(cell, Arm::kAfter).figures;
  // The last micro-batch finds all shards of gradients, and adds others to them.
  const double end_of_forward = 2 * 3 * 10100 + 15 + 4000 + 1000 + 4 + 7 + 3 * 20000 + 8 - 4000;
  EXPECT_EQ(figures.at("memory.end_of_forward_bytes"), end_of_forward);
  EXPECT_EQ(figures.at("memory.end_of_backward_bytes"), 2 * 3 * 10100 + 15 + 4000 + 1000 + 8);
  EXPECT_EQ(figures.at("memory.peak_bytes"), end_of_forward + 40 + 40000 - 20000 + 3 * 20200);
}

TEST_F(MemoryProfiles, RecomputedShardedLayersHaveFsdp2sBuffersInBackward) {
  const MemoryProfile profile = written(kProfile);
  CellConfig cell = small_cell();
  cell.ranks = 2;
  cell.training.checkpoint = Recompute::kFull;
  const auto figures = profile.estimate(cell, Arm::kAfter).figures;
  const double end_of_forward = 3 * 10100 + 15 + 4000 + 1000 + 4 + 2 * 4000 + 8;
  EXPECT_EQ(figures.at("memory.end_of_forward_bytes"), end_of_forward);
  // The second layer of backward runs its forward again, next to the buffers that it always has.
  EXPECT_EQ(figures.at("memory.peak_bytes"), end_of_forward + 40 + (10100 - 4000) + (20000 - 4000) + 40000 + 3 * 20200);
  cell.reshard_after_forward = false;
  EXPECT_EQ(profile.estimate(cell, Arm::kAfter).figures.at("memory.end_of_forward_bytes"), end_of_forward + 3 * 20200);
}

TEST_F(MemoryProfiles, ShardsThatDoNotDivideRowsArePadded) {
  CellConfig cell = small_cell();
  cell.ranks = 3;
  const auto figures = written(kProfile).estimate(cell, Arm::kAfter).figures;
  // Rank 0 has 34 of 100 rows and of 100 biases: 6,868 bytes of a layer.
  const double end_of_forward = 3 * 6868 + 15 + 4000 + 1000 + 4 + 7 + 3 * 20000 + 8 - 4000;
  EXPECT_EQ(figures.at("memory.end_of_forward_bytes"), end_of_forward);
  EXPECT_EQ(figures.at("memory.end_of_backward_bytes"), 2 * 3 * 6868 + 15 + 4000 + 1000 + 8);
  EXPECT_EQ(figures.at("memory.peak_bytes"), end_of_forward + 40 + 40000 + (6868 - 20000) + 3 * 3 * 6868);
}

TEST_F(MemoryProfiles, ReplicasHaveBucketsOfAllGradients) {
  const MemoryProfile profile = written(kProfile);
  CellConfig cell = small_cell();
  const auto figure = [&](const char* name) { return profile.estimate(cell, Arm::kAfter).figures.at(name); };
  const double end_of_forward = figure("memory.end_of_forward_bytes"), peak = figure("memory.peak_bytes");
  const double gradients = 3 * 20200;
  cell.ranks = 2;
  cell.sharding = Sharded::kDdp;
  EXPECT_EQ(figure("memory.end_of_forward_bytes"), end_of_forward + gradients);
  EXPECT_EQ(figure("memory.peak_bytes"), peak + gradients);
  cell.training.micro_batches = 2;
  EXPECT_EQ(figure("memory.end_of_forward_bytes"), end_of_forward + 2 * gradients);
}

TEST_F(MemoryProfiles, ShardedFp8WeightsAreGatheredInEightBits) {
  std::string text = replaced(kProfile, "\"recipe\": \"bf16\"", "\"recipe\": \"delayed\"");
  text = replaced(text, "\"quantized_weights\": false", "\"quantized_weights\": true");
  text = replaced(text, "\"arch\":", "\"sharded_fp8_weights_since\": \"2.5\", \"arch\":");
  written(text);
  CellConfig cell = small_cell();
  cell.training.recipe = "delayed";
  cell.training.quantized_weights = true;
  cell.ranks = 2;
  const auto estimate = [&](const char* release) { return of_release(release, cell).figures; };
  // Both orientations of the shards. 10,200 bytes are gathered of a layer, and 20,200 reduced.
  const double half = 3 * 10100 + 15 + 4000 + 1000 + 4 + 7 + 3 * 20000 + 8 - 4000;
  auto figures = estimate("torch@2.5");
  EXPECT_EQ(figures.at("memory.end_of_forward_bytes"), half);
  // In the second layer of backward: its weights, their other orientation, the next gather and the last gradients.
  EXPECT_EQ(figures.at("memory.peak_bytes"), half + 40 + 40000 + (10100 - 20000) + 10000 + 2 * 10200 + 20200);
  cell.reshard_after_forward = false;
  figures = estimate("torch@2.5");
  EXPECT_EQ(figures.at("memory.end_of_forward_bytes"), half + 3 * 20200);
  EXPECT_EQ(figures.at("memory.peak_bytes"), half + 3 * 20200 + 40 + 40000);

  const auto reason = [&](const char* release = "torch@2.6") { return support::error_of([&] { estimate(release); }); };
  EXPECT_TRUE(names(reason("torch@2.4"), "training.quantized_weights: ")) << reason("torch@2.4");
  cell.ranks = 3;
  EXPECT_TRUE(names(reason(), "ranks: 3 shards do not divide hidden, and with padded FP8 weights ")) << reason();
  cell.ranks = 2;
  cell.training.checkpoint = Recompute::kFull;
  EXPECT_TRUE(names(reason(), "training.checkpoint: ")) << reason();
  cell.training.checkpoint = Recompute::kNone;
  cell.sharding = Sharded::kDdp;
  EXPECT_TRUE(names(reason(), "training.quantized_weights: ")) << reason();
}

TEST_F(MemoryProfiles, ShardedWeightsInBlocksHave16Bits) {
  std::string text = replaced(kProfile, "\"recipe\": \"bf16\"", "\"recipe\": \"block\"");
  text = replaced(text, "\"arch\":", "\"sharded_fp8_weights_since\": \"2.5\", \"arch\":");
  const MemoryProfile profile = written(text);
  CellConfig cell = small_cell();
  cell.ranks = 3;
  cell.training.recipe = "block";
  cell.training.checkpoint = Recompute::kFull;
  const auto plain = profile.estimate(cell, Arm::kAfter).figures;
  cell.training.quantized_weights = true;
  EXPECT_EQ(profile.estimate(cell, Arm::kAfter).figures, plain);
  cell.training.deferred_init = true;
  const std::string error = support::error_of([&] { profile.estimate(cell, Arm::kAfter); });
  EXPECT_TRUE(names(error, "training.deferred_init: ")) << error;
  cell.training.deferred_init = false;
  EXPECT_EQ(profile.estimate(cell, Arm::kAfter).figures, plain);
  cell.ranks = 1;  // not sharded: the profile has no row with FP8 weights
  EXPECT_TRUE(names(support::error_of([&] { profile.estimate(cell, Arm::kAfter); }), "with FP8 weights"));
}

TEST_F(MemoryProfiles, CopiesOfShardedWeightsLiveUntilBackwardInOldReleasesAlone) {
  std::string text = replaced(kProfile, "\"recipe\": \"bf16\"", "\"recipe\": \"delayed\"");
  text = replaced(text, "{\"tokens*hidden\": 10}", "{\"tokens*hidden\": 10, \"hidden*hidden\": 2}");
  text = replaced(text, "{\"tokens*hidden\": -10}", "{\"tokens*hidden\": -10, \"hidden*hidden\": -2}");
  written(text);
  CellConfig cell = small_cell();
  cell.training.recipe = "delayed";
  const auto figure = [&](const char* release, const char* name) { return of_release(release, cell).figures.at(name); };
  // A rank that does not shard keeps both orientations of three layers, in every release.
  EXPECT_EQ(figure("torch@2.5", "memory.peak_bytes"), figure("torch@2.6", "memory.peak_bytes"));
  cell.ranks = 2;
  EXPECT_EQ(figure("torch@2.5", "memory.end_of_forward_bytes") - figure("torch@2.6", "memory.end_of_forward_bytes"),
            3 * 20000);
  // The last layer's backward makes one orientation of its weight again; in 2.5 its copies and those before it live.
  EXPECT_EQ(figure("torch@2.5", "memory.peak_bytes"), 3 * 10100 + 5026 + 8 - 4000 + 3 * 40000 + 40 + 40000 + 2 * 20200);
  EXPECT_EQ(figure("torch@2.6", "memory.peak_bytes"),
            3 * 10100 + 5026 + 8 - 4000 + 3 * 20000 + 40 + 50000 + (10100 - 20000) + 3 * 20200);
}

TEST_F(MemoryProfiles, WhatAProfileSaysNothingOfIsNamedByItsKey) {
  const MemoryProfile profile = written(kProfile);
  const auto reason = [&](void (*change)(CellConfig&)) -> std::string {
    CellConfig cell = small_cell();
    change(cell);
    return support::error_of([&] { profile.estimate(cell, Arm::kAfter); });
  };
  EXPECT_EQ(reason([](CellConfig&) {}), "");
  EXPECT_EQ(reason([](CellConfig& cell) { cell.ranks = 2; }), "");
  EXPECT_EQ(reason([](CellConfig& cell) { cell.ranks = 3; }), "");
  EXPECT_TRUE(names(reason([](CellConfig& cell) {
                      cell.ranks = 2;
                      cell.sharding = Sharded::kNone;
                    }),
                    "ranks: "));
  EXPECT_TRUE(names(reason([](CellConfig& cell) {
                      cell.ranks = 2;
                      cell.training.clip_norm = 1;
                    }),
                    "training.clip_norm: "));
  EXPECT_TRUE(names(reason([](CellConfig& cell) {
                      cell.ranks = 2;
                      cell.training.recipe = "delayed";
                      cell.training.quantized_weights = true;
                    }),
                    "training.quantized_weights: "));
  EXPECT_EQ(reason([](CellConfig& cell) {
              cell.ranks = 2;
              cell.training.quantized_weights = true;  // which bf16 ignores
            }),
            "");
  EXPECT_EQ(reason([](CellConfig& cell) { cell.arch = "blackwell"; }), "arch: blackwell; the profile covers hopper");
  EXPECT_EQ(reason([](CellConfig& cell) { cell.training.loss = Loss::kMse; }), "");
  EXPECT_EQ(reason([](CellConfig& cell) { cell.gather_ahead = true; }), "");  // FSDP2 does so whatever the key's value
  // All keys are named at once.
  const std::string all = reason([](CellConfig& cell) {
    cell.training.fp8_attention = true;
    cell.training.recipe = "mxfp8";
    cell.model.vocabulary = 100;
    cell.ranks = 2;
    cell.training.clip_norm = 1;
  });
  for (const char* key : {"training.fp8_attention: ", "model.vocabulary: ", "training.clip_norm: ",
                          "model.layer: the profile has no linear in form gpt under mxfp8"})
    EXPECT_TRUE(names(all, key)) << key << " is not in: " << all;
  EXPECT_TRUE(
      names(reason([](CellConfig& cell) { cell.training.recipe = "mxfp8"; }), "no linear in form gpt under mxfp8"));
  EXPECT_TRUE(names(reason([](CellConfig& cell) { cell.model.layer = "layernorm_mlp"; }), "no layernorm_mlp"));
  // Every other key is refused by its name if its value is not the default.
  const std::set<std::string_view> modelled{"ranks", "mesh", "sharding", "training.optimizer"};
  int refused = 0, ignored = 0;
  for (const Key& key : keys()) {
    CellConfig cell = small_cell();
    const Value before = key.get(cell);
    const auto changed = [&]() -> Value {
      switch (key.type) {
        case KeyType::kSwitch: return !(std::holds_alternative<bool>(before) && std::get<bool>(before));
        case KeyType::kInteger: return std::int64_t{7};
        case KeyType::kNumber: return 0.5;
        case KeyType::kMesh: return std::string("2x2");
        case KeyType::kWord:
          if (!key.table_words)
            return key.fixed_words.back() == to_text(before) ? key.fixed_words.front() : key.fixed_words.back();
          [[fallthrough]];
        default: return std::string("other");
      }
    }();
    key.set(cell, changed);
    if (changes_no_terms(key.path) || modelled.contains(key.path)) {
      ++ignored;
      continue;
    }
    ++refused;
    try {
      profile.estimate(cell, key.path == "fix" ? Arm::kBefore : Arm::kAfter);  // the other arms have the fix
      ADD_FAILURE() << key.path << " = " << to_text(changed) << " is ignored";
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(key.path)) << key.path << ": " << error.what();
    }
  }
  EXPECT_GT(refused, 30);
  EXPECT_EQ(ignored, 49) << "one more or fewer is taken to change nothing";
  EXPECT_TRUE(names(reason([](CellConfig& cell) { cell.training.moments = Moments::kE4M3; }), "training.moments: "));
  // Adam's step has FP32 copies of them, which no profile has.
  EXPECT_TRUE(names(reason([](CellConfig& cell) { cell.training.moments = Moments::kF16; }), "training.moments: "));
  EXPECT_EQ(reason([](CellConfig& cell) {
              cell.training.optimizer = Optimizer::kAdam;
              cell.training.moments = Moments::kBF16;
            }),
            "");
}

TEST_F(MemoryProfiles, ADamagedFileIsAnErrorOfTheCellsThatNeedIt) {
  written(kProfile);
  const std::string folder = (directory_ / "profiles").string();
  CellConfig cell = small_cell();
  cell.subject = "torch";
  cell.versions.after = "2.5.1";
  EXPECT_TRUE(MemoryProfile::find(folder, cell, Arm::kAfter));
  cell.versions.after = "2.7.0";
  EXPECT_FALSE(MemoryProfile::find(folder, cell, Arm::kAfter));
  sample::write(directory_ / "profiles/damaged.json", replaced(kProfile, "\"state\": 5", "\"state\": -5"));
  const PredictFunction predict =
      with_profiles([](const CellConfig&, Arm) { return std::map<std::string, double>{}; }, folder);
  try {
    predict(cell, Arm::kAfter);
    ADD_FAILURE() << "a damaged profile is left out without a word";
  } catch (const Error& error) {
    EXPECT_TRUE(names(error.what(), "damaged.json: `rows[0].state` ")) << error.what();
  }
  cell.subject = "own";
  EXPECT_NO_THROW(predict(cell, Arm::kAfter));
}

TEST_F(MemoryProfiles, AFileIsCheckedWhenItIsRead) {
  EXPECT_EQ(refusal(kProfile), "");
  EXPECT_TRUE(names(refusal(replaced(kProfile, "profile/3", "profile/1")), "`schema` must be fp8lab.memory-profile/3"));
  EXPECT_TRUE(names(refusal(replaced(kProfile, "\"tokens*hidden\": 10", "\"tokens*width\": 10")), "tokens*width"));
  EXPECT_TRUE(names(refusal(replaced(kProfile, "\"state\": 5", "\"state\": -5")), "state"));
  for (const char* weight :
       {"{}", "{\"hidden*hidden\": 0}", "{\"tokens*hidden\": 1}", "{\"hidden*hidden\": 1, \"hidden*ffn\": 1}"})
    EXPECT_TRUE(names(refusal(replaced(kProfile, "{\"hidden*hidden\": 1}", weight)), "is no matrix")) << weight;
  EXPECT_TRUE(names(refusal(replaced(kProfile, "\"last\": \"2.6\"", "\"last\": \"new\"")), "`last` must be a release"));
  EXPECT_TRUE(names(refusal(replaced(kProfile, "\"last\": 2}", "\"lost\": 2}")), "last"));
  EXPECT_TRUE(names(refusal("{"), "p.json"));
}

TEST_F(MemoryProfiles, AReleaseIsFoundInItsRangeAlone) {
  written(kProfile);
  const std::string folder = (directory_ / "profiles").string();
  const auto found = [&](const std::string& release) {
    try {
      MemoryProfile::find(folder, release);
      return std::string("found");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  for (const char* release : {"torch@2.4", "torch@2.5.1", "torch@2.6"}) EXPECT_EQ(found(release), "found") << release;
  for (const char* release : {"torch@2.3", "torch@2.7", "torch@3.5", "torch", "torch@", "jax@2.5"})
    EXPECT_TRUE(names(found(release), "torch@2.4 to torch@2.6")) << release << ": " << found(release);
}

}  // namespace
}  // namespace fp8lab

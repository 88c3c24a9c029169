#pragma once

#include <cmath>
#include <optional>
#include <string>

#include "harness/results/results.h"

namespace fp8lab::sample {

/// A record of a cell whose fields are all set: both arms, gates of each kind, a claim, figures with and without
/// values.
inline CellRecord record_named(const std::string& id) {
  CellRecord out;
  out.config.scenario = "sample";
  out.config.id = id;
  out.config.axes = {{"device", "meta"}, {"checkpoint", "full"}};
  out.config.fix = "release_attention_tensors";
  out.config.device = "meta";
  out.config.model.hidden = 2048;
  out.config.training.recipe_options.margin = 2;
  out.config.measure = {"memory"};
  out.file = "scenarios/sample.yaml";
  out.title = "A sample";
  out.upstream = {"TransformerEngine#1935"};
  out.verdict = Verdict::kNotFixed;
  out.reason = "after \"leaks\"";
  out.seconds = 0.25;
  ArmResult& before = out.arms[Arm::kBefore];
  before.seconds = 0.125;
  before.metrics["memory.retained_bytes"] = {617611264, 617611264, "B", ""};
  before.metrics["parity.loss_gap"] = {std::nullopt, std::nullopt, "1", "device 'meta' computes no values"};
  before.retained_by_holder = {{"context of attention[2]: q, k, v", 205870421}, {"x", 1}};
  before.peak_by_holder = {{"parameter", 7}};
  before.sequence_hash = "0123456789abcdef";
  before.emulated = "products";
  before.losses = {2.5, 0.1};
  before.validation_losses = {{0, 4.5}, {250, 2.0625}};
  before.samples["host.pre_forward_ns"] = {700, 1250.5};
  before.noise = {{"layers[0].fc1.weight", "gradient", 28.25, ""}, {"output", "output", std::nullopt, "no noise"}};
  before.casts = {{.tensor = "layers[0].fc1 gradient",
                   .steps = {0, 9},
                   .sqnr_db = {31.5, std::nullopt},
                   .clip_fraction = {0, 0.125},
                   .underflow_fraction = {0.5, 1}}};
  ArmResult& after = out.arms[Arm::kAfter];
  after.status = "crashed";
  after.reason = "ended by SIGSEGV";
  after.signal = "SIGSEGV";
  after.output_tail = "last\nwords";
  out.gates = {
      {"before memory.retained_bytes equals predicted", Side::kBefore, "memory.retained_bytes", true, 5, 5, ""},
      {"difference x", Side::kDifference, "memory.peak_bytes", std::nullopt, std::nullopt, 5, "absent"},
      {"after ends ok", Side::kAfter, "", false, std::nullopt, std::nullopt, "it ended crashed by SIGSEGV"}};
  Claim claim;
  claim.source = "TransformerEngine#1935";
  claim.words = "1070 MiB";
  claim.metric = "memory.peak_bytes";
  claim.value = 1070;
  claim.unit = "MiB";
  claim.note = "n";
  out.claims = {{claim, 5, std::nullopt}};
  out.effect = Effect{.kind = EffectKind::kBytes,
                      .text = "589.0 MiB retained after backward -> 0",
                      .metric = "memory.retained_bytes",
                      .unit = "B",
                      .before = 617611264,
                      .after = 0,
                      .predicted = 617611264,
                      .as_predicted = true,
                      .size = 617611264};
  out.hash = "0011223344556677";
  return out;
}

}  // namespace fp8lab::sample

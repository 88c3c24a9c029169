#pragma once

#include <string>

#include "harness/cell/vocabulary.h"

// A vocabulary and files for the harness's tests. They do not use the tables of lower modules, so they test only the
// harness.
namespace fp8lab::sample {

inline Vocabulary vocabulary() {
  Vocabulary out;
  out.recipes = {{"bf16", "sixteen bits"}, {"delayed", "delayed scaling"}, {"mxfp8", "blocks of 32"}};
  out.devices = {
      {"cpu", "host"}, {"meta", "shapes"}, {"cuda", "GPU", [] { return std::string("no CUDA device was found"); }}};
  out.archs = {{"hopper", ""}, {"blackwell", ""}};
  out.forms = {{"gpt", ""}, {"llama", ""}};
  out.layers = {{"linear", ""}, {"transformer_layer", ""}};
  out.fixes = {{"release_attention_tensors", {"TransformerEngine#1935"}, "memory stays", "attention_shells"},
               {"release_fuser_tensors", {"TransformerEngine#2750"}, "memory stays", "fuser_shells"}};
  out.max_ranks = [](std::string_view) { return 4; };
  out.broken_rules = [](const CellConfig& cell) {
    std::vector<BrokenRule> rules;
    if (cell.training.recipe == "mxfp8" && cell.model.hidden % 32 != 0)
      rules.push_back({"model.hidden", "mxfp8 quantizes blocks of 32 columns"});
    return rules;
  };
  out.computes_values = [](std::string_view device) { return device != "meta"; };
  out.quantizes = [](std::string_view recipe) { return recipe != "bf16"; };
  return out;
}

/// A complete fix scenario; tests append to it.
inline const std::string kFixScenario = R"(version: 1
name: sample
title: A sample
upstream: [TransformerEngine#1935]
fix: release_attention_tensors
model: {layer: transformer_layer, layers: 3, hidden: 2048, heads: 16, ffn: 6144, seq: 1048, batch: 32}
training: {steps: 1, recipe: delayed, fp8_attention: true}
measure: [memory]
)";

/// An expectation for it, which a scenario with a fix must have.
inline const std::string kFixExpectation = "expect: [{metric: memory.retained_bytes, arm: after, equals: 0}]\n";

}  // namespace fp8lab::sample

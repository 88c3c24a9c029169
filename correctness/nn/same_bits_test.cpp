#include <gtest/gtest.h>

#include <string>

#include "harness/measure/measure.h"
#include "support/cells.h"
#include "support/selected_set.h"

// The weights and losses of full training runs, as bits; layers that recompute train to the same. A machine, compiler,
// build type or instruction set that computes anything else fails here. An intended change of the numerics changes this
// table, and its commit states so.
namespace fp8lab {
namespace {

struct Trained {
  const char* recipe;
  const char* form;
  bool fp8_attention;
  const char* hash;
};

constexpr Trained kRuns[] = {
    {"bf16", "gpt", false, "101e82dd15a708f6"},      {"bf16", "llama", false, "a5b5e067a3befaf8"},
    {"delayed", "gpt", false, "310c194ef569d591"},   {"delayed", "llama", false, "0b9565ef3cb8ea1d"},
    {"delayed", "gpt", true, "8ed54a5a71439538"},    {"current", "gpt", false, "2de90cf81e8b2442"},
    {"current", "llama", false, "12fbbb81324a7408"}, {"block", "gpt", false, "8b2ff4b1d0dbd968"},
    {"block", "llama", false, "39ec9a5da41983f9"},   {"mxfp8", "gpt", false, "766c9f8201eef103"},
    {"mxfp8", "llama", false, "65014a058a1f80a1"},
};

void PrintTo(const Trained& run, std::ostream* out) { *out << run.recipe << " " << run.form; }

class SameBits : public ::testing::TestWithParam<Trained> {};

TEST_P(SameBits, EveryInstructionSetAndArch_TrainsToTheseWeightsAndLosses) {
  const Trained& run = GetParam();
  CellConfig cell = support::small_cell(run.recipe, run.form);
  cell.training.fp8_attention = run.fp8_attention;
  cell.measure = {"parity"};
  for (const std::string_view name : cpu_instruction_sets()) {
    const support::SelectedSet selected(name);
    for (const char* arch : {"hopper", "blackwell"}) {
      cell.arch = arch;
      EXPECT_EQ(measure_arm(cell, Arm::kAfter).values_hash, run.hash) << name << " as " << arch;
    }
  }
}

// FP8 attention does not go together with the results that are kept of it.
TEST_P(SameBits, WhateverLayersRecompute_TheyTrainToTheseWeightsAndLosses) {
  const Trained& run = GetParam();
  CellConfig cell = support::small_cell(run.recipe, run.form);
  cell.training.fp8_attention = run.fp8_attention;
  cell.measure = {"parity"};
  for (const std::string_view checkpoint : kWords<Recompute>) {
    if (run.fp8_attention && checkpoint.starts_with("selective")) continue;
    cell.training.checkpoint = checkpoint;
    EXPECT_EQ(measure_arm(cell, Arm::kAfter).values_hash, run.hash) << checkpoint;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, SameBits, ::testing::ValuesIn(kRuns), [](const auto& instance) {
  const Trained& run = instance.param;
  return std::string(run.recipe) + "_" + run.form + (run.fp8_attention ? "_fp8_attention" : "");
});

}  // namespace
}  // namespace fp8lab

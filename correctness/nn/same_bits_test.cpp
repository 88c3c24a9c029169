#include <gtest/gtest.h>

#include <string>

#include "backend/instruction_sets.h"
#include "harness/measure.h"
#include "support/cells.h"

// The weights and losses of whole training runs, as bits: a machine, compiler, build type or instruction set that computes
// anything else fails here. A change of the numerics that is meant changes this table, and says so in its commit.
namespace fp8lab {
namespace {

struct Trained {
  const char* recipe;
  const char* form;
  bool fp8_attention;
  const char* hash;
};

constexpr Trained kRuns[] = {
    {"bf16", "gpt", false, "00944617ef15bbe0"},
    {"bf16", "llama", false, "fb3d726257074d6a"},
    {"delayed", "gpt", false, "951f5c52b471945d"},
    {"delayed", "llama", false, "d11a19fce04a878a"},
    {"delayed", "gpt", true, "d07fd5bcacfbcb43"},
    {"current", "gpt", false, "cd75297b792cfbfb"},
    {"current", "llama", false, "f43b6771e02af88f"},
    {"block", "gpt", false, "befef5c28ea97ab2"},
    {"block", "llama", false, "4a616fcc3c917f1a"},
    {"mxfp8", "gpt", false, "507ffe704e285591"},
    {"mxfp8", "llama", false, "3b92ce7f19165b80"},
};

void PrintTo(const Trained& run, std::ostream* out) { *out << run.recipe << " " << run.form; }

class SameBits : public ::testing::TestWithParam<Trained> {};

TEST_P(SameBits, EveryInstructionSet_TrainsToTheseWeightsAndLosses) {
  const Trained& run = GetParam();
  CellConfig cell = support::small_cell(run.recipe, run.form);
  cell.training.fp8_attention = run.fp8_attention;
  cell.measure = {"parity"};
  const std::string_view before = cpu_instruction_set();
  for (const std::string_view name : cpu_instruction_sets()) {
    select_cpu_instruction_set(name);
    EXPECT_EQ(measure_arm(cell, Arm::kAfter).values_hash, run.hash) << name;
  }
  select_cpu_instruction_set(before);
}

INSTANTIATE_TEST_SUITE_P(Runs, SameBits, ::testing::ValuesIn(kRuns), [](const auto& instance) {
  const Trained& run = instance.param;
  return std::string(run.recipe) + "_" + run.form + (run.fp8_attention ? "_fp8_attention" : "");
});

}  // namespace
}  // namespace fp8lab

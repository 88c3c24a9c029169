// Activation checkpointing changes which bytes are held and no value that is computed.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "reference/compare.h"
#include "support/cells.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using support::FinishedRun;
using support::small_cell;

::testing::AssertionResult same_values(const std::vector<std::vector<float>>& actual,
                                       const std::vector<std::vector<float>>& expected) {
  if (actual.size() != expected.size() || actual.empty())
    return ::testing::AssertionFailure() << actual.size() << " tensors, expected " << expected.size();
  for (std::size_t i = 0; i < actual.size(); ++i)
    if (auto same = reference::bitwise_equal(actual[i], expected[i]); !same) return same << ", in tensor " << i;
  return ::testing::AssertionSuccess();
}

/// Recipe, layer form, whether attention runs in eight bits, dropout, operation fuser.
using Point = std::tuple<const char*, const char*, bool, double, const char*>;

class CheckpointMatrix : public ::testing::TestWithParam<Point> {
 protected:
  static CellConfig cell(const char* checkpoint) {
    const auto& [recipe, form, fp8_attention, dropout, op_fuser] = GetParam();
    CellConfig cell = small_cell(recipe, form);
    cell.model.layers = 2;
    cell.model.dropout = dropout;
    cell.model.op_fuser = op_fuser;
    cell.training.fp8_attention = fp8_attention;
    cell.training.checkpoint = checkpoint;
    return cell;
  }
};

void expect_same_bits(const CellConfig& plain, const CellConfig& checkpointed) {
  FinishedRun kept(plain);
  FinishedRun recomputed(checkpointed);
  EXPECT_TRUE(reference::bitwise_equal(recomputed.run.losses(), kept.run.losses()));
  EXPECT_EQ(kept.run.losses().size(), 3u);
  EXPECT_TRUE(reference::bitwise_equal(recomputed.run.values().output, kept.run.values().output));
  EXPECT_TRUE(same_values(recomputed.run.values().gradients, kept.run.values().gradients));
  EXPECT_TRUE(same_values(recomputed.run.values().weights, kept.run.values().weights));
  EXPECT_FALSE(same_values(kept.run.values().weights, kept.run.values().initial_weights)) << "nothing was trained";

  EXPECT_LT(recomputed.mark("end_of_forward").live_bytes, kept.mark("end_of_forward").live_bytes);
  EXPECT_EQ(recomputed.mark("end_of_backward").live_bytes, kept.mark("end_of_backward").live_bytes);
  EXPECT_EQ(recomputed.mark("end_of_backward").retained_bytes, 0);
}

TEST_P(CheckpointMatrix, CheckpointedRunHasTheBitsOfThePlainRun) { expect_same_bits(cell("none"), cell("full")); }

// Stashed scales belong to several products, one of which has no tokens.
TEST(CheckpointedExperts, HaveTheBitsOfThePlainRun) {
  for (const char* recipe : support::quantized_recipe_names()) {
    SCOPED_TRACE(recipe);
    CellConfig plain = small_cell(recipe, "gpt", "grouped_linear");
    plain.model.layers = 2;
    plain.model.seq *= 4;
    plain.model.split = "uneven";
    CellConfig checkpointed = plain;
    checkpointed.training.checkpoint = "full";
    expect_same_bits(plain, checkpointed);
  }
}

TEST(CheckpointedAttention, WithA16BitBackwardOrBetweenEightBitsHasTheBitsOfThePlainRun) {
  for (const char* form : {"gpt", "llama"})
    for (const char* recipe : {"delayed", "current"})
      for (const bool eight_bit_backward : {false, true}) {
        SCOPED_TRACE(std::string(form) + " " + recipe);
        CellConfig plain = small_cell(recipe, form, "multihead_attention");
        plain.model.layers = 2;
        plain.training.fp8_attention = true;
        plain.training.fp8_attention_backward = plain.training.fp8_mha = eight_bit_backward;
        CellConfig checkpointed = plain;
        checkpointed.training.checkpoint = "full";
        expect_same_bits(plain, checkpointed);
      }
}

std::string name_of(const ::testing::TestParamInfo<Point>& info) {
  const auto& [recipe, form, fp8_attention, dropout, op_fuser] = info.param;
  return std::string(recipe) + "_" + form + (fp8_attention ? "_fp8_attention" : "") + (dropout > 0 ? "_dropout" : "") +
         (std::string(op_fuser) == "mlp" ? "_op_fuser" : "");
}

INSTANTIATE_TEST_SUITE_P(All, CheckpointMatrix,
                         ::testing::Combine(::testing::ValuesIn(support::recipe_names()),
                                            ::testing::Values("gpt", "llama"), ::testing::Bool(),
                                            ::testing::Values(0.0, 0.1), ::testing::Values("none", "mlp")),
                         name_of);

}  // namespace
}  // namespace fp8lab

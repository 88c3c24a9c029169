// The fixes of saved tensors, each by itself: bytes that are zero with the fix and not without, controls in which the
// difference vanishes for the right reason, and proof that the fix changes no computed value.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>

#include "fixes/fixes.h"
#include "fixes/witness.h"
#include "reference/compare.h"
#include "support/cells.h"

namespace fp8lab {
namespace {

using support::FinishedRun;
using support::small_cell;

/// Two layers on the device `cpu`. The loss is alive when memory is read.
CellConfig two_layers(std::string_view layer, std::string_view form = "gpt") {
  CellConfig cell = small_cell("delayed", form, layer);
  cell.model.layers = 2;
  return cell;
}

CellConfig attention_cell() {
  CellConfig cell = two_layers("transformer_layer");
  cell.training.fp8_attention = true;
  return cell;
}

CellConfig fuser_cell() {
  CellConfig cell = two_layers("transformer_layer", "llama");
  cell.model.op_fuser = "mlp";
  return cell;
}

// Three groups of 32 tokens, and an empty one.
CellConfig grouped_cell() {
  CellConfig cell = two_layers("grouped_linear");
  cell.model.seq = 48;
  cell.model.split = "uneven";
  return cell;
}

CellConfig module_cell() { return two_layers("layernorm_mlp"); }

CellConfig checkpointed_module_cell() {
  CellConfig cell = module_cell();
  cell.training.checkpoint = "full";
  return cell;
}

std::int64_t retained(FinishedRun& run) { return run.mark("end_of_backward").retained_bytes; }
/// Bytes that contexts hold at the end of a checkpointed forward; they should be zero.
std::int64_t kept_by_contexts(FinishedRun& run) { return run.mark("end_of_forward").by_kind.at("context"); }

/// What a fix changes: bytes that are zero with it and `reverted_bytes` without.
struct Leak {
  std::string_view fix;
  CellConfig (*cell)();
  std::int64_t (*bytes)(FinishedRun&);
  std::int64_t reverted_bytes;
  std::string_view holder;  ///< as the ledger labels it in the first layer
};

// Shapes of small_cell("delayed") on hopper: 32 tokens, hidden 32, ffn 64, two layers.
//   attention  q, k and v, 32 x 32 each, and their scale: 2 x 3076
//   fuser      the chain's weights, transposed, and their scales: 2 x (128 x 32 + 4 + 32 x 64 + 4)
//   grouped    the weights of four experts both directions, their scales, and the inputs' scales, but not the
//              inputs' data, which are cleared: 2 x 4 x (2 x 32 x 32 + 4 + 4)
//   modules    the weights of both products both directions, and their scales: 2 x 2 x (2 x 64 x 32 + 4)
constexpr Leak kLeaks[] = {
    {"release_attention_tensors", attention_cell, retained, 6152, "context of layers[0].attention: k, q, v"},
    {"release_fuser_tensors", fuser_cell, retained, 12304,
     "context of layers[0].mlp: layers[0].mlp.fc1.weight, layers[0].mlp.fc2.weight"},
    {"release_grouped_tensors", grouped_cell, retained, 16448, "context of layers[0]: weight, x"},
    {"release_module_tensors", module_cell, retained, 16400, "context of layers[0]: weight1, weight2"},
    {"empty_module_shells", checkpointed_module_cell, kept_by_contexts, 16400,
     "context of layers[0]: weight1, weight2"},
};

const Leak* leak_of(std::string_view fix) {
  const auto* found =
      std::find_if(std::begin(kLeaks), std::end(kLeaks), [&](const Leak& leak) { return leak.fix == fix; });
  return found == std::end(kLeaks) ? nullptr : found;
}

using fixes_test::without;

template <std::size_t kIndex>
bool nothing_leaks(const Behaviors& behaviors) {
  const Leak& leak = kLeaks[kIndex];
  FinishedRun run(leak.cell(), behaviors);
  return leak.bytes(run) == 0;
}

class SavedTensors : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    witness_ = leak_of(GetParam());
    ASSERT_NE(witness_, nullptr) << GetParam();
  }
  /// The witness's bytes on a variation of its cell, with the fix reverted.
  std::int64_t reverted_bytes(const std::function<void(CellConfig&)>& change) {
    CellConfig cell = witness_->cell();
    change(cell);
    FinishedRun run(cell, without(GetParam()));
    return witness_->bytes(run);
  }
  const Leak* witness_ = nullptr;
};

TEST_P(SavedTensors, RetainTheListedBytesWithoutTheFix) {
  EXPECT_EQ(reverted_bytes([](CellConfig&) {}), witness_->reverted_bytes);
}

TEST_P(SavedTensors, LeavesEveryComputedBitAlone) {
  FinishedRun with(witness_->cell()), reverted(witness_->cell(), without(GetParam()));
  EXPECT_TRUE(reference::bitwise_equal(reverted.run.losses(), with.run.losses()));
  const auto& actual = reverted.run.values();
  const auto& expected = with.run.values();
  ASSERT_FALSE(expected.gradients.empty());
  for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
    EXPECT_TRUE(reference::bitwise_equal(actual.gradients[i], expected.gradients[i])) << i;
    EXPECT_TRUE(reference::bitwise_equal(actual.weights[i], expected.weights[i])) << i;
  }
}

TEST_P(SavedTensors, ShowsTheSameBytesOnMeta) {
  EXPECT_EQ(reverted_bytes([](CellConfig& cell) { cell.device = "meta"; }), witness_->reverted_bytes);
}

TEST_P(SavedTensors, RetainedBytesNameTheHolder) {
  FinishedRun reverted(witness_->cell(), without(GetParam()));
  const LedgerMark& mark = reverted.mark(witness_->bytes == retained ? "end_of_backward" : "end_of_forward");
  const auto named = [&](const auto& entry) { return entry.first == witness_->holder; };
  const HolderBytes& holders = mark.retained_by_holder;
  const auto found = std::find_if(holders.begin(), holders.end(), named);
  ASSERT_NE(found, holders.end()) << "nobody is called " << witness_->holder;
  EXPECT_EQ(found->second, witness_->reverted_bytes / 2);
}

TEST_P(SavedTensors, MakesNoDifferenceWithoutQuantization) {
  EXPECT_EQ(reverted_bytes([](CellConfig& cell) { cell.training.recipe = "bf16"; }), 0);
}

// Nodes and their contexts are freed with the loss. If the loss is freed before memory is read, the fix makes no
// difference.
TEST_P(SavedTensors, MakesNoDifferenceToRetainedBytesOnceTheLossIsGone) {
  CellConfig cell = witness_->cell();
  cell.training.keep_loss = false;
  FinishedRun reverted(cell, without(GetParam()));
  EXPECT_EQ(retained(reverted), 0);
}

// Recomputed tensors go to the contexts of the first forward's nodes, which keep them: checkpointing does not reduce
// the retained bytes.
TEST_P(SavedTensors, RetainsAsMuchWithCheckpointingAsWithout) {
  std::array<std::int64_t, 2> bytes{};
  for (const bool checkpointed : {false, true}) {
    CellConfig cell = witness_->cell();
    cell.training.checkpoint = checkpointed ? "full" : "none";
    FinishedRun reverted(cell, without(GetParam()));
    bytes[checkpointed ? 1 : 0] = retained(reverted);
  }
  EXPECT_EQ(bytes[0], witness_->reverted_bytes);
  EXPECT_EQ(bytes[1], witness_->reverted_bytes);
}

std::vector<std::string_view> names_of_leaks() {
  std::vector<std::string_view> names;
  for (const Leak& leak : kLeaks) names.push_back(leak.fix);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Table, SavedTensors, ::testing::ValuesIn(names_of_leaks()),
                         [](const auto& test) { return std::string(test.param); });

// The fixes are independent: reverting the fix of attention, of the fuser or of GroupedLinear does not change another
// fix's witness.
TEST(Witnesses, DependOnTheirOwnFixOnly) {
  for (const Leak& witness : kLeaks) {
    for (const std::string_view reverted :
         {"release_attention_tensors", "release_fuser_tensors", "release_grouped_tensors"}) {
      FinishedRun run(witness.cell(), without(reverted));
      EXPECT_EQ(witness.bytes(run) != 0, witness.fix == reverted) << witness.fix << " with " << reverted << " reverted";
    }
  }
}

// Modules have two defects: one keeps tensors that backward restored, the other keeps them from forward on.
TEST(Witnesses, DistinguishTheTwoFixesOfModules) {
  FinishedRun restored(checkpointed_module_cell(), without("release_module_tensors"));
  EXPECT_EQ(kept_by_contexts(restored), 0);
  FinishedRun kept(checkpointed_module_cell(), without("empty_module_shells"));
  EXPECT_EQ(kept_by_contexts(kept), 16400);
}

}  // namespace

std::span<const fixes_test::Witness> fixes_test::saved_tensor_witnesses() {
  static constexpr Witness kWitnesses[] = {{kLeaks[0].fix, nothing_leaks<0>},
                                           {kLeaks[1].fix, nothing_leaks<1>},
                                           {kLeaks[2].fix, nothing_leaks<2>},
                                           {kLeaks[3].fix, nothing_leaks<3>},
                                           {kLeaks[4].fix, nothing_leaks<4>}};
  static_assert(std::size(kWitnesses) == std::size(kLeaks));
  return kWitnesses;
}

}  // namespace fp8lab

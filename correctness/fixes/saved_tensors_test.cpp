// Witnesses of the fixes of saved tensors: bytes that are zero with the fix, and without it belong to a named holder.

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "fixes/fixes.h"
#include "fixes/witness.h"
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

template <std::size_t kIndex>
bool nothing_leaks(const Behaviors& behaviors) {
  const Leak& leak = kLeaks[kIndex];
  FinishedRun run(leak.cell(), behaviors);
  return leak.bytes(run) == 0;
}

TEST(SavedTensors, RetainedBytesNameTheHolderWithoutTheFix) {
  for (const Leak& leak : kLeaks) {
    FinishedRun reverted(leak.cell(), fixes_test::without(leak.fix));
    EXPECT_EQ(leak.bytes(reverted), leak.reverted_bytes) << leak.fix;
    const LedgerMark& mark = reverted.mark(leak.bytes == retained ? "end_of_backward" : "end_of_forward");
    const HolderBytes& holders = mark.retained_by_holder;
    const auto found = std::ranges::find(holders, leak.holder, [](const auto& entry) { return entry.first; });
    ASSERT_NE(found, holders.end()) << "nobody is called " << leak.holder;
    EXPECT_EQ(found->second, leak.reverted_bytes / 2) << leak.fix;
  }
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

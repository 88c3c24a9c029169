// The fix of attention's saved tensors when ranks split sequences between them: the node of ring attention restores
// what its context keeps, as the node of attention on one rank does (saved_tensors_test.cpp).

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "comm/process_groups.h"
#include "fixes/witness.h"
#include "reference/compare.h"
#include "support/cells.h"

namespace fp8lab {
namespace {

constexpr int kRing = 2;

CellConfig ring_cell() {
  CellConfig cell = support::small_cell("delayed");
  cell.model.layers = 2;
  cell.training.fp8_attention = true;
  cell.ranks = cell.context_parallel = kRing;
  return cell;
}

/// What one rank shows after training.
struct OfRank {
  std::int64_t retained = 0;
  HolderBytes holders;
  std::vector<float> losses;
  std::vector<std::vector<float>> gradients, weights;
};

std::vector<OfRank> trained(const CellConfig& cell, bool with_fix) {
  std::vector<OfRank> all(static_cast<std::size_t>(cell.ranks));
  run_ranks(cell.device == "meta" ? "simulated" : "in_process", {.ranks = cell.ranks}, [&](ProcessGroup& world) {
    TrainingRun run(cell, with_fix ? Behaviors{} : fixes_test::without("release_attention_tensors"),
                    make_recipe(cell.training.recipe, cell.training.recipe_options), {.world = &world});
    run.keep_values(true);
    run.run();
    const auto& marks = run.device().ledger().marks();
    const auto mark =
        std::find_if(marks.rbegin(), marks.rend(), [](const LedgerMark& of) { return of.name == "end_of_backward"; });
    all[static_cast<std::size_t>(world.rank())] = {.retained = mark->retained_bytes,
                                                   .holders = mark->retained_by_holder,
                                                   .losses = run.losses(),
                                                   .gradients = run.values().gradients,
                                                   .weights = run.values().weights};
  });
  return all;
}

// 16 of 32 tokens, hidden 32, two layers on hopper: q, 16 x 32, with its scale, and kv of the other rank, 16 x 64, with
// the scale that came with it.
constexpr std::int64_t kReverted = 2 * (16 * 32 + 4 + 16 * 64 + 4);

TEST(RingAttentionTensors, AreReleasedWithTheFixAndRetainedWithoutOnEveryRank) {
  for (const char* checkpoint : {"none", "full"}) {
    CellConfig cell = ring_cell();
    cell.training.checkpoint = checkpoint;
    for (const OfRank& rank : trained(cell, true)) EXPECT_EQ(rank.retained, 0) << checkpoint;
    for (const OfRank& rank : trained(cell, false)) {
      EXPECT_EQ(rank.retained, kReverted) << checkpoint;
      const auto named = std::find_if(rank.holders.begin(), rank.holders.end(), [](const auto& holder) {
        return holder.first == "context of layers[0].attention: kv, q";
      });
      ASSERT_NE(named, rank.holders.end());
      EXPECT_EQ(named->second, kReverted / 2);
    }
  }
}

TEST(RingAttentionTensors, AreAsManyBytesOnMeta) {
  CellConfig cell = ring_cell();
  cell.device = "meta";
  EXPECT_EQ(trained(cell, false).front().retained, kReverted);
  EXPECT_EQ(trained(cell, true).front().retained, 0);
}

TEST(RingAttentionTensors, AreReleasedWithoutTheFixWhereNothingIsInAContext) {
  CellConfig cell = ring_cell();
  cell.training.recipe = "bf16";
  EXPECT_EQ(trained(cell, false).front().retained, 0);
  cell = ring_cell();
  cell.training.keep_loss = false;
  EXPECT_EQ(trained(cell, false).front().retained, 0);
  cell = ring_cell();
  cell.training.fp8_attention_backward = false;
  EXPECT_EQ(trained(cell, false).front().retained, 0);
}

TEST(RingAttentionTensors, FixLeavesEveryComputedBitAlone) {
  const std::vector<OfRank> with = trained(ring_cell(), true), reverted = trained(ring_cell(), false);
  for (std::size_t rank = 0; rank < with.size(); ++rank) {
    EXPECT_TRUE(reference::bitwise_equal(reverted[rank].losses, with[rank].losses));
    ASSERT_FALSE(with[rank].gradients.empty());
    for (std::size_t i = 0; i < with[rank].gradients.size(); ++i) {
      EXPECT_TRUE(reference::bitwise_equal(reverted[rank].gradients[i], with[rank].gradients[i])) << i;
      EXPECT_TRUE(reference::bitwise_equal(reverted[rank].weights[i], with[rank].weights[i])) << i;
    }
  }
}

}  // namespace
}  // namespace fp8lab

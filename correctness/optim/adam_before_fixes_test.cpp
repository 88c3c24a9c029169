// Fused Adam over quantized weights as it was before two fixes: under current scaling it kept the scale of the initial
// values, and it did not know weights in blocks.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/process_groups.h"
#include "optim/parameters.h"
#include "reference/compare.h"
#include "reference/float8_reference.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using namespace optim_test;
using reference::bitwise_equal;

constexpr Behaviors kKeepsScale{.measure_scale_in_adam = false};
constexpr Behaviors kIgnoresBlocks{.cast_blocks_in_adam = false};
constexpr int kStepsOfAdam = 10;

/// What Adam leaves on one rank.
struct Stepped {
  std::vector<std::uint8_t> data, transpose;
  float first_scale_inv = 0.0f, scale_inv = 0.0f;
  std::vector<float> master;
};

float scale_inv_of(Device& device, const QuantizedTensor& weight) {
  return device.read(weight.rowwise().scale_inv).front();
}

/// Steps that grow a weight of 384 x 128 under current scaling, in shards of the given rows. It begins at magnitudes
/// below 2.5 and each step adds 0.15 to each of them.
std::vector<Stepped> grow(const Behaviors& behaviors, const std::vector<std::int64_t>& rows) {
  std::vector<Stepped> ranks(rows.size());
  run_ranks("in_process", {.ranks = static_cast<int>(rows.size())}, [&](ProcessGroup& group) {
    const std::unique_ptr<Device> device = open_host();
    Runtime runtime{.device = *device, .behaviors = behaviors};
    const auto rank = static_cast<std::size_t>(group.rank());
    std::int64_t first = 0;
    for (std::size_t i = 0; i < rank; ++i) first += rows[i];
    Sharded weight(*device, {.shape = {rows[rank], 128}, .recipe = "current", .first_row = first, .group = &group},
                   {384, 128});
    // A weight that no gradient moves is cast again in every step, under the scale that it has.
    Sharded still(*device, {.name = "s", .shape = {rows[rank], 128}, .recipe = "current", .group = &group}, {384, 128});
    Parameter& shard = *weight.shard;
    Stepped& own = ranks[rank];
    own.first_scale_inv = scale_inv_of(*device, shard.quantized);
    const std::vector<std::uint8_t> unmoved = all_bytes(*device, still.shard->quantized);
    const std::vector<float> signs = rows_of(1, 0.5, first, shard.spec.shape);
    std::vector<float> gradient(signs.size());
    for (std::size_t i = 0; i < signs.size(); ++i) gradient[i] = signs[i] < 0.0f ? 1.0f : -1.0f;
    Adam adam({&still.unsharded, &weight.unsharded}, {.learning_rate = 0.15, .master = MasterWeights::kF32});
    for (int step = 0; step < kStepsOfAdam; ++step) {
      shard.grad = support::make_tensor(*device, shard.spec.shape, DType::kBF16, gradient);
      adam.step(runtime);
    }
    own.data = support::bytes_of(*device, shard.quantized.rowwise().data);
    own.transpose = support::bytes_of(*device, shard.quantized.columnwise().data);
    own.scale_inv = scale_inv_of(*device, shard.quantized);
    own.master = device->read(adam.state()[1].master);
    if (!behaviors.measure_scale_in_adam) {
      EXPECT_EQ(all_bytes(*device, still.shard->quantized), unmoved);
    }
  });
  return ranks;
}

class KeptScale : public ::testing::TestWithParam<std::vector<std::int64_t>> {
 protected:
  static constexpr double kLargest = 448.0;
  reference::SmallFloat e4m3_{reference::kE4M3Layout};
  reference::SmallFloat bf16_{reference::kBFloat16Layout};
};

// The reference is the definition: the master rounded to BF16, times the reciprocal of the first scale_inv in FP32,
// rounded to E4M3 and clipped at 448.
TEST_P(KeptScale, ClipsWeightsAtTheirInitialAmax) {
  std::size_t clipped = 0, values = 0;
  for (const Stepped& rank : grow(kKeepsScale, GetParam())) {
    EXPECT_EQ(rank.scale_inv, rank.first_scale_inv);
    const float scale = 1.0f / rank.first_scale_inv;
    ASSERT_EQ(rank.data.size(), rank.master.size());
    for (std::size_t i = 0; i < rank.master.size(); ++i) {
      const double rounded = bf16_.decode(bf16_.encode(static_cast<double>(rank.master[i])));
      const float scaled = static_cast<float>(rounded) * scale;
      EXPECT_EQ(rank.data[i], e4m3_.encode(static_cast<double>(scaled)));
      clipped += std::abs(static_cast<double>(scaled)) > kLargest;
    }
    values += rank.master.size();
    const std::size_t rows = rank.data.size() / 128;
    ASSERT_EQ(rank.transpose.size(), rank.data.size());
    for (std::size_t i = 0; i < rank.data.size(); ++i)
      EXPECT_EQ(rank.transpose[i % 128 * rows + i / 128], rank.data[i]);
  }
  EXPECT_GT(clipped, values / 10);
  EXPECT_LT(clipped, values) << "nothing is left to compare";
}

TEST_P(KeptScale, WithTheFixFollowsTheAmaxOfAllShards) {
  const std::vector<Stepped> ranks = grow({}, GetParam());
  double amax = 0.0;
  for (const Stepped& rank : ranks)
    for (const float master : rank.master)
      amax = std::max(amax, std::abs(bf16_.decode(bf16_.encode(static_cast<double>(master)))));
  const float scale = static_cast<float>(kLargest / amax);
  for (const Stepped& rank : ranks) {
    EXPECT_EQ(rank.scale_inv, 1.0f / scale);
    EXPECT_GT(rank.scale_inv, 1.5f * rank.first_scale_inv);
    for (std::size_t i = 0; i < rank.master.size(); ++i) {
      const double rounded = bf16_.decode(bf16_.encode(static_cast<double>(rank.master[i])));
      EXPECT_EQ(rank.data[i], e4m3_.encode(static_cast<double>(static_cast<float>(rounded) * scale)));
    }
  }
}

TEST_P(KeptScale, ChangesNoMaster) {
  const std::vector<Stepped> kept = grow(kKeepsScale, GetParam()), measured = grow({}, GetParam());
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(bitwise_equal(kept[i].master, measured[i].master));
}

// One rank, even and uneven shards, and empty ones at either end.
INSTANTIATE_TEST_SUITE_P(Shards, KeptScale,
                         ::testing::Values(std::vector<std::int64_t>{384}, std::vector<std::int64_t>{128, 128, 128},
                                           std::vector<std::int64_t>{256, 127, 1},
                                           std::vector<std::int64_t>{0, 384, 0}));

/// The bytes and the master of a weight after steps of Adam on one rank.
std::pair<std::vector<std::uint8_t>, std::vector<float>> step(const char* recipe, const Behaviors& behaviors,
                                                              bool sharded) {
  const std::unique_ptr<Device> device = open_host();
  Runtime runtime{.device = *device, .behaviors = behaviors};
  Sharded parameter(*device, {.shape = {128, 128}, .recipe = recipe}, {256, 128});
  Parameter& shard = *parameter.shard;
  Adam adam({sharded ? &parameter.unsharded : &shard}, {.learning_rate = 0.1, .master = MasterWeights::kF32});
  for (int i = 1; i <= 3; ++i) {
    set_gradient(*device, shard, i);
    adam.step(runtime);
  }
  return {shard.in_eight_bits() ? all_bytes(*device, shard.quantized) : support::bytes_of(*device, shard.value),
          device->read(adam.state().front().master)};
}

bool in_blocks(std::string_view recipe) {
  const Recipe made = make_recipe(recipe);
  return made.quantized && !made.weight.per_tensor();
}

using IgnoredBlocksDeathTest = ::testing::TestWithParam<bool>;

TEST_P(IgnoredBlocksDeathTest, DereferencesTheStorageThatAWeightInBlocksLacks) {
  int recipes = 0;
  for (const char* recipe : support::quantized_recipe_names()) {
    if (!in_blocks(recipe)) continue;
    ++recipes;
    EXPECT_DEATH(step(recipe, kIgnoresBlocks, GetParam()), "") << recipe;
  }
  EXPECT_EQ(recipes, 2);
}
INSTANTIATE_TEST_SUITE_P(ShardedOrNot, IgnoredBlocksDeathTest, ::testing::Bool());

TEST(Controls, AdamBeforeAFixGivesTheSameBitsForOtherRecipes) {
  for (const char* recipe : support::recipe_names())
    for (const bool sharded : {true, false}) {
      if (std::string_view(recipe) != "current") {
        EXPECT_EQ(step(recipe, kKeepsScale, sharded), step(recipe, {}, sharded)) << recipe;
      }
      if (!in_blocks(recipe)) {
        EXPECT_EQ(step(recipe, kIgnoresBlocks, sharded), step(recipe, {}, sharded)) << recipe;
      }
    }
}

}  // namespace
}  // namespace fp8lab

// The guarantees of every gather: the bits of the unsharded parameter, and no heap allocation. Its bytes and
// collectives are predicted.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/heap_allocations.h"
#include "fsdp/sharded_run.h"
#include "support/error_of.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using fsdp_test::bytes_of;
using fsdp_test::ModelRun;
using fsdp_test::on_ranks;
using fsdp_test::RunConfig;
using fsdp_test::small_block;

RunConfig config_of(const char* recipe, std::int64_t hidden) {
  RunConfig config;
  config.recipe = recipe;
  config.layers = 2;
  config.config = small_block(hidden);
  return config;
}

/// The bytes of a parameter as a module reads it: both orientations, or only the row-wise one if the pass gathered both
/// or needs no other.
std::vector<std::vector<std::byte>> unsharded_bytes(Device& device, const Parameter& parameter, bool columnwise) {
  if (!parameter.in_eight_bits()) return {bytes_of(device, parameter.value)};
  auto all = bytes_of(device, parameter.quantized);
  if (!columnwise) all.resize(2);
  return all;
}

// Each rank initialises only its own rows. The gathered parameter equals the one of a single rank: quantized data,
// scales and their padding.
TEST(Gather, GathersTheBitsOfTheUnshardedParameter) {
  for (const char* recipe : support::recipe_names()) {
    for (const int ranks : {1, 2, 3, 4}) {
      // Shards of entire blocks, so that every weight stays in eight bits; without blocks, shards of at least 24 rows.
      const std::int64_t block = make_recipe(recipe).weight.block_cols;
      RunConfig config = config_of(recipe, block > 0 ? block * ranks : 96);
      config.config.ffn = 2 * config.config.hidden;
      config.reshard = false;  // both orientations at once
      ModelRun alone(config);
      on_ranks(ranks, [&](ProcessGroup& world) {
        ModelRun run(config, world, {.replicas = 1, .shards = ranks});
        run.sharding().unshard(run.runtime());
        EXPECT_TRUE(run.sharding().warnings().empty()) << run.sharding().warnings().front();
        for (std::size_t i = 0; i < alone.model().parameters().size(); ++i) {
          const Parameter& expected = *alone.model().parameters()[i];
          const Parameter& actual = *run.model().parameters()[i];
          EXPECT_EQ(actual.in_eight_bits(), expected.in_eight_bits()) << recipe << ": " << actual.name;
          const bool columnwise = static_cast<bool>(actual.quantized.columnwise());
          EXPECT_EQ(unsharded_bytes(run.device(), actual, columnwise),
                    unsharded_bytes(alone.device(), expected, columnwise))
              << recipe << " over " << ranks << ": " << actual.name;
        }
        run.sharding().reshard();
      });
    }
  }
}

// Column-wise blocks that travel, as they did before the fix, arrive as the blocks of a single rank, padding included.
TEST(Gather, ReordersColumnwiseBlocksThatTravel) {
  for (const int ranks : {1, 2, 3}) {
    RunConfig config = config_of("block", 128 * ranks);
    config.behaviors.gather_blocks_row_wise = false;
    ModelRun alone(config);
    on_ranks(ranks, [&](ProcessGroup& world) {
      ModelRun run(config, world, {.replicas = 1, .shards = ranks});
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        run.sharding().unshard(run.runtime(), pass);
        for (std::size_t i = 0; i < alone.model().parameters().size(); ++i) {
          const Parameter& expected = *alone.model().parameters()[i];
          const Parameter& actual = *run.model().parameters()[i];
          EXPECT_EQ(unsharded_bytes(run.device(), actual, true), unsharded_bytes(alone.device(), expected, true))
              << "over " << ranks << ": " << actual.name;
        }
        run.sharding().reshard();
      }
    });
  }
}

// Transposes that products of a pass read are made after its gather: as in FSDP2's hooks, by forward's gather only if
// backward does not gather. A reshard after a pass frees what was gathered and not what was made of it.
TEST(Gather, MakesTheTransposesThatItsPassReads) {
  for (const char* const recipe : {"delayed", "block"})
    for (const char* const arch : {"hopper", "blackwell"})
      for (const bool reshard : {true, false}) {
        RunConfig config = config_of(recipe, 256);
        if (config.device == "cuda" && config.arch != arch) continue;  // GPUs have one architecture
        config.arch = arch;
        config.reshard = reshard;
        const bool needed = std::string_view(arch) == "hopper" || std::string_view(recipe) == "block";
        on_ranks(2, [&](ProcessGroup& world) {
          ModelRun run(config, world, {.replicas = 1, .shards = 2});
          for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
            run.sharding().unshard(run.runtime(), pass);
            for (const Parameter* parameter : run.model().parameters()) {
              if (!parameter->in_eight_bits()) continue;
              EXPECT_EQ(static_cast<bool>(parameter->quantized.columnwise()),
                        needed && (pass == Pass::kBackward || !reshard))
                  << recipe << " on " << arch << ", reshard " << reshard << ": " << parameter->name;
            }
            run.sharding().reshard();
          }
        });
      }
}

TEST(Gather, FallsBackToHighPrecisionWhereBlocksWouldBeCut) {
  on_ranks(4, [&](ProcessGroup& world) {
    ModelRun run(config_of("mxfp8", 96), world, {.replicas = 1, .shards = 4});
    ASSERT_FALSE(run.sharding().warnings().empty());
    EXPECT_NE(run.sharding().warnings().front().find("stays in high precision"), std::string::npos);
    for (const Parameter* parameter : run.model().parameters()) {
      const Parameter& shard = *parameter->local;
      EXPECT_NE(shard.in_eight_bits(), static_cast<bool>(shard.value)) << shard.name;
    }
  });
}

// Gathering ahead keeps the number of collectives and the bits; the peak has one layer more.
TEST(Gather, AheadGivesTheSameBits) {
  for (const char* recipe : {"bf16", "delayed", "mxfp8"}) {
    for (const bool checkpoint : {false, true}) {
      const auto train = [&](ProcessGroup& world, bool ahead) {
        RunConfig config = config_of(recipe, 96);
        config.layers = 4;
        config.checkpoint = checkpoint;
        config.gather_ahead = ahead;
        ModelRun run(config, world, {.replicas = 1, .shards = 3});
        std::vector<float> losses;
        for (int step = 0; step < 3; ++step) {
          run.model().zero_grad();
          losses.push_back(run.step(world.rank() * 64));
        }
        std::vector<std::vector<std::byte>> gradients;
        for (const Parameter* parameter : run.model().parameters())
          gradients.push_back(bytes_of(run.device(), parameter->local->grad));
        const TrafficCount gathered = run.sharding().mesh().shard_group().traffic().of(CollectiveKind::kAllGather);
        return std::tuple(losses, gradients, gathered, run.device().ledger().peak_bytes(PhaseKind::kBackward));
      };
      on_ranks(3, [&](ProcessGroup& world) {
        const auto [losses, gradients, gathered, peak] = train(world, false);
        const auto [losses_ahead, gradients_ahead, gathered_ahead, peak_ahead] = train(world, true);
        EXPECT_EQ(losses_ahead, losses) << recipe << " on rank " << world.rank();
        EXPECT_EQ(gradients_ahead, gradients) << recipe << " on rank " << world.rank();
        EXPECT_EQ(gathered_ahead, gathered);
        EXPECT_GT(peak_ahead, peak);
      });
    }
  }
}

// Unsharded parameters may arrive for a pass that does not come next, or that never comes.
TEST(Gather, AheadForAPassThatDoesNotComeIsHarmless) {
  on_ranks(2, [&](ProcessGroup& world) {
    const std::unique_ptr<Device> device =
        open_device(support::test_device(), {.rank = world.local_rank(), .memory = {}});
    const auto ranks = world.for_device(*device);
    Runtime runtime{.device = *device, .behaviors = {}, .seed = 7};
    Model model(runtime, make_recipe("mxfp8"),
                {.layers = 2, .config = small_block(64), .eight_bit_weights = true, .deferred_init = true});
    Mesh mesh(*ranks, {.replicas = 1, .shards = 2});
    const std::vector<ShardingState> states = {{.path = "", .reshard_after_forward = true}};
    const std::vector<Parameter*> all = model.parameters();
    const std::span<Parameter* const> parameters(all);
    const std::size_t middle = all.size() / 2;
    ParameterGroup first(runtime, "layers[0]", parameters.first(middle), mesh, states, GroupOptions{});
    ParameterGroup second(runtime, "layers[1]", parameters.subspan(middle), mesh, states, GroupOptions{});
    const Parameter& weight =
        **std::find_if(all.begin() + static_cast<std::ptrdiff_t>(middle), all.end(),
                       [](const Parameter* parameter) { return parameter->local->in_eight_bits(); });
    second.unshard(runtime, Pass::kBackward);
    const auto expected = bytes_of(*device, weight.quantized);
    EXPECT_TRUE(weight.quantized.columnwise());
    second.reshard();
    first.gather_ahead(&second, nullptr);
    first.unshard(runtime, Pass::kForward);
    second.unshard(runtime, Pass::kBackward);
    EXPECT_EQ(bytes_of(*device, weight.quantized), expected);
    second.reshard();
    first.reshard();
    first.unshard(runtime, Pass::kForward);
  });
}

TEST(Gather, AllocatesNothingFromTheHeapAfterTheFirstSteps) {
  for (const char* recipe : support::recipe_names()) {
    run_ranks("simulated", {.ranks = 4}, [&](ProcessGroup& world) {
      RunConfig config = config_of(recipe, 512);
      config.device = "meta";
      ModelRun run(config, world, {.replicas = 1, .shards = 4});
      const auto pass = [&] {
        run.sharding().unshard(run.runtime());
        run.sharding().reshard();
      };
      for (int i = 0; i < 4; ++i) pass();
      const std::int64_t before = heap_allocations();
      for (int i = 0; i < 4; ++i) pass();
      EXPECT_EQ(heap_allocations() - before, 0) << recipe;
    });
  }
}

// A late rank costs the others time, but none of it is work of their hosts. A rank that first trains a model of its own
// is late by most of the time of the others' step.
TEST(Gather, TimeOfWaitingForOthersIsNotHostWork) {
  const RunConfig config = config_of("bf16", 64);
  on_ranks(2, [&](ProcessGroup& world) {
    ModelRun run(config, world, {.replicas = 1, .shards = 2});
    run.step();
    std::vector<PreForwardSample> samples;
    run.runtime().host.samples = &samples;
    if (world.rank() == 1) {
      ModelRun alone(config);
      for (int i = 0; i < 40; ++i) alone.step();
    }
    const auto start = std::chrono::steady_clock::now();
    run.step();
    if (world.rank() == 1) return;
    ASSERT_EQ(samples.size(), 2u);
    EXPECT_LT(std::chrono::nanoseconds(samples[0].nanoseconds), (std::chrono::steady_clock::now() - start) / 2);
  });
}

// The addresses of `meta` have no memory behind them and must not be read.
TEST(Gather, RefusesAGroupThatMovesBytesOfMeta) {
  RunConfig config = config_of("delayed", 96);
  config.device = "meta";
  EXPECT_THROW(on_ranks(2, [&](ProcessGroup& world) { ModelRun(config, world, {.replicas = 1, .shards = 2}); }), Error);
}

// The other ranks learn of the death in their next collective, and the run names the rank that died first.
TEST(Gather, EndsOnEveryRankWhenOneDies) {
  const std::string error = support::error_of([&] {
    on_ranks(3, [&](ProcessGroup& world) {
      ModelRun run(config_of("delayed", 96), world, {.replicas = 1, .shards = 3});
      run.step();
      if (world.rank() == 1) fail("the GPU fell off");
      for (;;) run.step();
    });
  });
  EXPECT_EQ(error, "rank 1: the GPU fell off");
}

}  // namespace
}  // namespace fp8lab

// The places of shards and unsharded parameters: in memory that ranks reserve together, at the same places on all of
// them if all ranks have the same number of rows. The placement must not depend on fixes, since ranks that disagree
// about it would wait for each other for ever.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp/sharded_run.h"
#include "fsdp/sharding.h"
#include "support/gathering_group.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using fsdp_test::ModelRun;
using fsdp_test::on_ranks;
using fsdp_test::RunConfig;
using fsdp_test::small_block;
using support::GatheringAccount;
using support::GatheringGroup;

RunConfig config_of_places(std::string_view recipe, std::int64_t hidden) {
  RunConfig config;
  config.device = "cpu";  // the ranks of `cpu` gather through GatheringGroup
  config.recipe = recipe;
  config.layers = 2;
  config.config = small_block(hidden);
  return config;
}

std::vector<float> losses_of(ModelRun& run) {
  std::vector<float> losses;
  for (int step = 0; step < 2; ++step) {
    run.model().zero_grad();
    losses.push_back(run.step());
  }
  return losses;
}

TEST(Placement, EvenParametersLieInsideOfGatheredMemory) {
  for (const char* recipe : support::recipe_names()) {
    for (const bool deferred : {true, false}) {
      for (const MeshShape mesh : {MeshShape{.replicas = 1, .shards = 2}, MeshShape{.replicas = 2, .shards = 2}}) {
        const std::string what =
            std::string(recipe) + (deferred ? ", deferred" : ", cut out of the unsharded parameter");
        RunConfig config = config_of_places(recipe, std::string_view(recipe) == "block" ? 256 : 64);
        config.deferred_init = deferred;
        config.gather_ahead = mesh.replicas == 1;
        on_ranks(mesh.ranks(), [&](ProcessGroup& world) {
          GatheringAccount account;
          std::vector<float> losses;
          {
            GatheringGroup gathering(world, account);
            ModelRun run(config, gathering, mesh);
            losses = losses_of(run);
            EXPECT_GT(account.inside, 0) << what;
            EXPECT_EQ(account.outside + account.uneven, 0) << what;
          }
          EXPECT_EQ(account.segments, 0) << what;
          ModelRun plain(config, world, mesh);
          EXPECT_EQ(losses, losses_of(plain)) << what;
        });
      }
    }
  }
}

TEST(Placement, EndOfOneShardingKeepsTheSourceOfAnother) {
  on_ranks(2, [](ProcessGroup& world) {
    GatheringAccount account;
    GatheringGroup gathering(world, account);
    const auto device = open_device("cpu");
    Memory& memory = device->memory();
    auto first = std::make_unique<GatherMemory>(memory, gathering);
    {
      const GatherMemory second(memory, gathering);
      const SegmentSource* const seconds = memory.allocator().gather_source();
      first.reset();
      EXPECT_EQ(memory.allocator().gather_source(), seconds);
      const GatherMemory none(memory, world);
      EXPECT_EQ(memory.allocator().gather_source(), seconds) << "a group without one leaves it too";
    }
    EXPECT_EQ(memory.allocator().gather_source(), nullptr);
  });
}

TEST(Placement, UnevenParametersLieOutsideOfGatheredMemory) {
  on_ranks(3, [&](ProcessGroup& world) {
    GatheringAccount account;
    GatheringGroup gathering(world, account);
    RunConfig config = config_of_places("delayed", 64);
    ModelRun run(config, gathering, {.replicas = 1, .shards = 3});
    losses_of(run);
    EXPECT_GT(account.outside, 0);
    EXPECT_EQ(account.uneven, 0) << "every rank sends as many bytes";
    int even = 0;
    for (const Parameter* parameter : run.model().parameters()) {
      const RowSplit split(dim0(parameter->spec.shape), 3);
      const Pool pool = split.even() ? Pool::kGathered : Pool::kOwn;
      EXPECT_EQ(run.device().memory().pool_of(parameter->holder), pool) << parameter->name;
      EXPECT_EQ(run.device().memory().pool_of(parameter->local->holder), pool) << parameter->name;
      even += split.even() ? 1 : 0;
    }
    EXPECT_LT(even, static_cast<int>(run.model().parameters().size()));
  });
}

// The storage that later replaces a shard's is placed by its holder's name. A shard outside of the gathered memory
// would still be gathered, only slowly.
TEST(Placement, ShardsStayInGatheredMemoryWhenTheirStorageIsReplaced) {
  on_ranks(2, [&](ProcessGroup& world) {
    GatheringAccount account;
    GatheringGroup gathering(world, account);
    ModelRun run(config_of_places("bf16", 64), gathering, {.replicas = 1, .shards = 2});
    for (Parameter* parameter : run.model().parameters()) {
      Parameter& shard = *parameter->local;
      shard.value = cast(run.device(), shard.value, shard.value.dtype(), shard.holder);
    }
    run.sharding().unshard(run.runtime());
    EXPECT_GT(account.inside, 0);
    EXPECT_EQ(account.outside, 0);
  });
}

TEST(Placement, RanksAgreeOnPlacesWhicheverFixIsReverted) {
  constexpr bool Behaviors::* kReverted[] = {
      &Behaviors::gather_eight_bits,         &Behaviors::share_amax_over_shards,
      &Behaviors::choose_usage_by_pass,      &Behaviors::validate_usage_by_pass,
      &Behaviors::use_weight_quantizer,      &Behaviors::keep_fp8_init_metadata,
      &Behaviors::split_in_eight_bits,       &Behaviors::strip_scale_padding,
      &Behaviors::reuse_quantizer_at_gather, &Behaviors::nearest_sharding_state,
      &Behaviors::own_scale_in_new_zeros,    &Behaviors::copy_bytes_between_shards,
      &Behaviors::view_aligned_slices,       &Behaviors::drop_transpose_in_make_like,
      &Behaviors::flatten_without_copy,
  };
  for (const char* recipe : {"delayed", "current", "mxfp8"})
    for (const bool deferred : {true, false})
      for (bool Behaviors::* const reverted : kReverted) {
        RunConfig config = config_of_places(recipe, 64);
        config.layers = 1;
        config.deferred_init = deferred;
        config.behaviors.*reverted = false;
        // Without these fixes a pass requires an orientation that it did not gather, which is an error if the layer is
        // resharded.
        config.reshard = reverted != &Behaviors::validate_usage_by_pass && reverted != &Behaviors::use_weight_quantizer;
        on_ranks(2, [&](ProcessGroup& world) {
          GatheringAccount account;
          GatheringGroup gathering(world, account);
          ModelRun run(config, gathering, {.replicas = 1, .shards = 2});
          losses_of(run);
          // The generic path makes the bytes that it sends for the gather, so they lie wherever there is room.
          if (reverted != &Behaviors::gather_eight_bits) {
            EXPECT_EQ(account.outside, 0);
          }
          EXPECT_GT(account.inside, 0);
        });
      }
}

// An unsharded parameter that somebody still holds keeps its segment; shards and everything else end with the groups.
TEST(Placement, AnUnshardedParameterMayOutliveItsGroups) {
  on_ranks(2, [&](ProcessGroup& world) {
    GatheringAccount account;
    const std::unique_ptr<Device> device = open_device("cpu", {.memory = {.capacity_bytes = 0, .poison = true}});
    Tensor kept;
    {
      GatheringGroup gathering(world, account);
      const auto ranks = gathering.for_device(*device);
      Runtime runtime{.device = *device, .behaviors = {}, .seed = 1};
      Model model(runtime, make_recipe("bf16"),
                  {.layer = "linear", .layers = 1, .config = small_block(64), .deferred_init = true});
      Mesh mesh(*ranks, {.replicas = 1, .shards = 2});
      Sharding sharding(runtime, model, mesh, {});
      sharding.unshard(runtime);
      kept = model.parameters().front()->value;
    }
    EXPECT_EQ(account.segments, 1);
    EXPECT_FALSE(device->read(kept).empty());
    kept = {};
    EXPECT_EQ(account.segments, 0);
  });
}

}  // namespace
}  // namespace fp8lab

#include "fsdp/mesh.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/row_split.h"
#include "fsdp/sharded_run.h"
#include "fsdp/sharding_hooks.h"
#include "fsdp/state.h"

namespace fp8lab {
namespace {

TEST(Mesh, NeedsAsManyRanksAsItHasPlaces) {
  EXPECT_EQ(mesh_error({.replicas = 1, .shards = 8}, 8), "");
  EXPECT_EQ(mesh_error({.replicas = 2, .shards = 4}, 8), "");
  EXPECT_NE(mesh_error({.replicas = 2, .shards = 3}, 8).find("2 x 3"), std::string::npos);
  EXPECT_NE(mesh_error({.replicas = 0, .shards = 8}, 8), "");
  EXPECT_NE(mesh_error({.replicas = 65536, .shards = 65536}, 0), "") << "the product leaves 32 bits";
  EXPECT_THROW(fsdp_test::on_ranks(3, [](ProcessGroup& world) { Mesh(world, {.replicas = 2, .shards = 2}); }), Error);
}

TEST(Mesh, GroupsRanksByReplicaAndByShard) {
  std::mutex mutex;
  std::set<std::tuple<int, int, int>> places;  // world rank, shard, replica
  fsdp_test::on_ranks(6, [&](ProcessGroup& world) {
    Mesh mesh(world, {.replicas = 2, .shards = 3});
    ASSERT_NE(mesh.replica_group(), nullptr);
    EXPECT_EQ(mesh.shard_group().size(), 3);
    EXPECT_EQ(mesh.replica_group()->size(), 2);
    EXPECT_EQ(mesh.shard_group().world_rank(0), world.rank() / 3 * 3) << "a replica is a run of ranks";
    EXPECT_EQ(mesh.replica_group()->world_rank(1), world.rank() % 3 + 3);
    const std::scoped_lock lock(mutex);
    places.emplace(world.rank(), mesh.shard_group().rank(), mesh.replica_group()->rank());
  });
  for (int rank = 0; rank < 6; ++rank) EXPECT_TRUE(places.contains({rank, rank % 3, rank / 3})) << rank;
}

TEST(Mesh, TakesExpertParallelNeighboursFromThoseThatShard) {
  EXPECT_EQ(mesh_error({.replicas = 2, .shards = 4, .expert_parallel = 4}, 8), "");
  EXPECT_NE(mesh_error({.replicas = 1, .shards = 4, .expert_parallel = 3}, 4).find("3 ranks"), std::string::npos);
  EXPECT_NE(mesh_error({.replicas = 4, .shards = 1, .expert_parallel = 2}, 4), "");
  fsdp_test::on_ranks(16, [](ProcessGroup& world) {
    Mesh mesh(world, {.replicas = 2, .shards = 8, .expert_parallel = 4});
    const int rank = world.rank();
    ASSERT_NE(mesh.expert_group(), nullptr);
    EXPECT_EQ(mesh.expert_group()->size(), 4);
    EXPECT_EQ(mesh.expert_group()->rank(), rank % 4) << "the part of the experts";
    EXPECT_EQ(mesh.expert_group()->world_rank(0), rank / 4 * 4);
    EXPECT_EQ(mesh.expert_shard_group().size(), 2);
    EXPECT_EQ(mesh.expert_shard_group().rank(), rank % 8 / 4);
    EXPECT_EQ(mesh.expert_shard_group().world_rank(0), rank / 8 * 8 + rank % 4) << "the same replica and part";
    EXPECT_EQ(mesh.shard_group().size(), 8);
  });
}

TEST(Mesh, OfOneReplicaHasNoReplicaGroup) {
  fsdp_test::on_ranks(2, [](ProcessGroup& world) {
    Mesh mesh(world, {.replicas = 1, .shards = 2});
    EXPECT_EQ(mesh.replica_group(), nullptr);
  });
}

// Every row belongs to one rank, in order, and no rank has more rows than the first.
TEST(RowSplit, CoversEveryRowOnce) {
  for (std::int64_t rows = 0; rows <= 40; ++rows)
    for (int ranks = 1; ranks <= 17; ++ranks) {
      const RowSplit split(rows, ranks);
      std::int64_t covered = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(split.begin(rank), covered);
        EXPECT_GE(split.count(rank), 0);
        EXPECT_LE(split.count(rank), split.count(0));
        covered += split.count(rank);
      }
      EXPECT_EQ(covered, rows);
      EXPECT_EQ(split.count(0), ceil_div(rows, ranks));
    }
}

using Offsets = std::vector<std::int64_t>;

TEST(RowSplit, CountsOffsetsInBlocks) {
  const RowSplit split(288, 3);
  EXPECT_TRUE(split.even());
  EXPECT_EQ(split.bounds(), (Offsets{0, 96, 192, 288}));
  EXPECT_EQ(split.padded_offsets(10), (Offsets{0, 960, 1920, 2880}));
  EXPECT_EQ(split.padded_offsets(4, 32), (Offsets{0, 12, 24, 36}));
}

// 10 rows over 8 ranks: two for each of the first five, and none for the others, all of which move two.
TEST(RowSplit, PadsEveryRankToTheRowsOfTheFirst) {
  const RowSplit split(10, 8);
  EXPECT_FALSE(split.even());
  EXPECT_EQ(split.bounds(), (Offsets{0, 2, 4, 6, 8, 10, 10, 10, 10}));
  EXPECT_EQ(split.padded_rows(), 16);
  EXPECT_EQ(split.padded_offsets(3), (Offsets{0, 6, 12, 18, 24, 30, 36, 42, 48}));
  EXPECT_EQ(RowSplit(7, 2).padded_offsets(1, 4), (Offsets{0, 1, 2}));
  EXPECT_EQ(RowSplit(0, 3).padded_offsets(5), (Offsets{0, 0, 0, 0}));
}

TEST(ShardingState, IsTakenFromTheNearestEnclosingModule) {
  const std::vector<ShardingState> states{{.path = "", .reshard_after_forward = false},
                                          {.path = "layers[1]", .reshard_after_forward = true},
                                          {.path = "layers[1].mlp", .reshard_after_forward = false}};
  const auto found = [&](std::string_view name) { return state_of(states, name).path; };
  EXPECT_EQ(found("layers[1].qkv.weight"), "layers[1]");
  EXPECT_EQ(found("layers[1].mlp.fc1.weight"), "layers[1].mlp");
  EXPECT_EQ(found("layers[11].qkv.weight"), "") << "a longer name is another module";
  EXPECT_EQ(found("layers[1].mlp2.weight"), "layers[1]");
  const auto gathers_by_pass = [&](const Behaviors& behaviors) {
    return make_sharding_hooks(behaviors)->gathers_by_pass(states, "layers[1]");
  };
  EXPECT_TRUE(gathers_by_pass({}));
  EXPECT_FALSE(gathers_by_pass({.nearest_sharding_state = false})) << "the root keeps what it gathered";
  EXPECT_FALSE(gathers_by_pass({.choose_usage_by_pass = false}));
}

}  // namespace
}  // namespace fp8lab

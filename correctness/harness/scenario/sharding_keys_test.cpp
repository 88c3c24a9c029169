#include "harness/cell/sharding_keys.h"

#include <gtest/gtest.h>

namespace fp8lab {
namespace {

TEST(ShardingKeys, MeshIsShardsOrReplicasTimesShards) {
  EXPECT_EQ(parse_mesh("4")->replicas, 1);
  EXPECT_EQ(parse_mesh("4")->shards, 4);
  EXPECT_EQ(parse_mesh("2x16")->replicas, 2);
  EXPECT_EQ(parse_mesh("2x16")->shards, 16);
  EXPECT_EQ(parse_mesh("65536")->shards, 65536);
  for (const char* text : {"", "x", "2x", "x2", "0", "0x2", "2x0", "-1", "2x-2", "2x2x2", "2X2", " 2", "2 x 2", "02",
                           "65537", "2.0", "four"})
    EXPECT_FALSE(parse_mesh(text)) << text;
}

TEST(ShardingKeys, RanksShardUnlessTheCellDisablesIt) {
  CellConfig cell;
  EXPECT_FALSE(is_sharded(cell));
  EXPECT_FALSE(defers_init(cell));
  EXPECT_EQ(mesh_of(cell).shards, 1);
  cell.mesh = "1";
  EXPECT_TRUE(is_sharded(cell));
  cell.mesh.clear();
  cell.sharding = "fsdp";
  EXPECT_TRUE(is_sharded(cell));
  EXPECT_TRUE(defers_init(cell));
  cell.training.deferred_init = false;
  EXPECT_FALSE(defers_init(cell));
  cell.sharding.reset();
  cell.ranks = 6;
  EXPECT_TRUE(is_sharded(cell));
  EXPECT_EQ(mesh_of(cell).replicas, 1);
  EXPECT_EQ(mesh_of(cell).shards, 6);
  cell.mesh = "3x2";
  EXPECT_EQ(mesh_of(cell).replicas, 3);
  EXPECT_EQ(mesh_of(cell).shards, 2);
  cell.sharding = "none";
  EXPECT_FALSE(is_sharded(cell));
}

TEST(ShardingKeys, EveryRankOfDdpIsAReplica) {
  CellConfig cell;
  EXPECT_FALSE(has_ranks(cell));
  cell.ranks = 3;
  EXPECT_TRUE(has_ranks(cell));
  EXPECT_FALSE(is_replicated(cell));
  cell.sharding = "ddp";
  EXPECT_TRUE(has_ranks(cell));
  EXPECT_TRUE(is_replicated(cell));
  EXPECT_FALSE(is_sharded(cell));
  EXPECT_FALSE(defers_init(cell));
  EXPECT_EQ(mesh_of(cell).replicas, 3);
  EXPECT_EQ(mesh_of(cell).shards, 1);
  EXPECT_EQ(data_parallel_ranks(cell), 3);
}

}  // namespace
}  // namespace fp8lab

// Shards that are padded to the number of rows of rank 0's, as by FSDP2: what is stored, and that no result
// depends on what the padding holds.

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/padded_shards.h"
#include "fsdp/sharded_run.h"
#include "reference/compare.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using fsdp_test::bytes_of;
using fsdp_test::ModelRun;
using fsdp_test::on_ranks;
using fsdp_test::padding_of;
using fsdp_test::poison;
using fsdp_test::RunConfig;
using fsdp_test::small_block;
using fsdp_test::travelling_arrays;
using fsdp_test::uneven;

constexpr int kRankCounts[] = {2, 3, 4, 5, 7, 8};

using Case = std::tuple<const char*, int>;
class PaddedShards : public ::testing::TestWithParam<Case> {};
std::string name_of(const ::testing::TestParamInfo<Case>& test) {
  return std::string(std::get<0>(test.param)) + "_" + std::to_string(std::get<1>(test.param));
}

TEST_P(PaddedShards, HaveStorageForTheRowsOfRank0AndZerosAfterTheirOwn) {
  const auto& [recipe, ranks] = GetParam();
  RunConfig config = uneven(recipe);
  config.deferred_init = ranks % 2 == 1;
  on_ranks(ranks, [&, ranks = ranks](ProcessGroup& world) {
    ModelRun run(config, world, {.replicas = 1, .shards = ranks});
    for (const Parameter* parameter : run.model().parameters()) {
      const RowSplit split(dim0(parameter->spec.shape), ranks);
      SCOPED_TRACE(parameter->name + " on rank " + std::to_string(world.rank()));
      for (const Tensor* array : travelling_arrays(*parameter->local)) {
        const Tensor padding = padding_of(*array);
        EXPECT_EQ(static_cast<bool>(padding), split.count(world.rank()) < split.chunk());
        if (!padding) continue;
        EXPECT_EQ(array->bytes() + padding.bytes(), split.chunk() * row_elems(parameter->spec.shape) *
                                                        static_cast<std::int64_t>(size_bytes(array->dtype())));
        for (const std::byte byte : bytes_of(run.device(), padding)) ASSERT_EQ(byte, std::byte{0});
      }
    }
  });
}

// The unsharded storage holds what the ranks' padding holds, but neither forward nor backward reads it.
TEST_P(PaddedShards, NoResultDependsOnThePadding) {
  const auto& [recipe, ranks] = GetParam();
  for (const bool reshard : {true, false}) {
    RunConfig config = uneven(recipe);
    config.deferred_init = ranks % 2 == 1;
    config.reshard = reshard;
    if (reshard) config.reduce_dtype = DType::kF32;
    on_ranks(ranks, [&, ranks = ranks](ProcessGroup& world) {
      ModelRun clean(config, world, {.replicas = 1, .shards = ranks}),
          poisoned(config, world, {.replicas = 1, .shards = ranks});
      for (int step = 0; step < 2; ++step) {
        const int found = poison(poisoned);
        if (world.rank() + 1 == world.size()) {
          EXPECT_GT(found, 0) << "nothing was padded";
        }
        EXPECT_EQ(clean.step(world.rank()), poisoned.step(world.rank()));
        for (std::size_t i = 0; i < clean.model().parameters().size(); ++i) {
          const Parameter &a = *clean.model().parameters()[i]->local, &b = *poisoned.model().parameters()[i]->local;
          EXPECT_EQ(a.grad.shape(), a.spec.shape) << a.name;
          for (const std::byte byte : bytes_of(clean.device(), padding_of(a.grad)))
            ASSERT_EQ(byte, std::byte{0}) << a.name;
          EXPECT_EQ(bytes_of(clean.device(), a.grad), bytes_of(poisoned.device(), b.grad)) << a.name;
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, PaddedShards,
                         ::testing::Combine(::testing::ValuesIn(support::recipe_names()),
                                            ::testing::ValuesIn(kRankCounts)),
                         name_of);

// A shard whose storage others replaced, as a load may do, is padded again by the next gather.
TEST(PaddedShards, AreMadeAgainWhenTheirStorageWasReplaced) {
  on_ranks(5, [](ProcessGroup& world) {
    ModelRun run(uneven("bf16"), world, {.replicas = 1, .shards = 5});
    run.sharding().unshard(run.runtime());
    std::vector<std::vector<std::byte>> before;
    for (const Parameter* parameter : run.model().parameters())
      before.push_back(bytes_of(run.device(), parameter->value));
    run.sharding().reshard();
    for (Parameter* parameter : run.model().parameters()) {
      Tensor& value = parameter->local->value;
      value = cast(run.device(), value, value.dtype(), parameter->local->holder);
    }
    run.sharding().unshard(run.runtime());
    for (std::size_t i = 0; i < before.size(); ++i) {
      const Parameter& parameter = *run.model().parameters()[i];
      const RowSplit split(dim0(parameter.spec.shape), 5);
      EXPECT_EQ(bytes_of(run.device(), parameter.value), before[i]);
      EXPECT_EQ(static_cast<bool>(padding_of(parameter.local->value)), split.count(world.rank()) < split.chunk())
          << "the gather sent bytes that are not the shard's";
    }
  });
}

// 33 ranks and more can have uneven shards of full blocks of 32 rows: here 32 for each of 64 ranks, and none for the
// other two.
TEST(PaddedShards, OfFullBlocksEqualTheUnshardedParameter) {
  RunConfig config;
  config.recipe = "mxfp8";
  config.layer = "linear";
  config.config = small_block(64 * 32);
  config.config.seq = 32;
  config.config.batch = 1;
  config.config.form.bias = false;
  // Read before the ranks start: claims on a block are counted without locks, so only one thread may make them.
  ModelRun alone(config);
  const QuantizedTensor& expected = alone.model().parameters().front()->quantized;
  struct Wanted {
    std::int64_t scale_rows = 0;
    std::vector<std::byte> data, scales;
  };
  const auto read = [&](const QuantizedOrientation& orientation, std::int64_t scale_rows) {
    return Wanted{scale_rows, bytes_of(alone.device(), orientation.data),
                  bytes_of(alone.device(), orientation.scale_inv.row_range(0, scale_rows))};
  };
  const Wanted wanted_in_forward = read(expected.rowwise(), 64 * 32),
               wanted_in_backward = read(expected.columnwise(), 64);
  for (const bool strips : {true, false}) {
    config.behaviors.strip_scale_padding = strips;
    on_ranks(66, [&](ProcessGroup& world) {
      ModelRun run(config, world, {.replicas = 1, .shards = 66});
      const Parameter& parameter = *run.model().parameters().front();
      EXPECT_TRUE(parameter.local->in_eight_bits());
      poison(run);
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        run.sharding().unshard(run.runtime(), pass);
        const bool forward = pass == Pass::kForward;
        const QuantizedOrientation& got = forward ? parameter.quantized.rowwise() : parameter.quantized.columnwise();
        const Wanted& wanted = forward ? wanted_in_forward : wanted_in_backward;
        EXPECT_TRUE(reference::bitwise_equal(bytes_of(run.device(), got.data), wanted.data));
        if (strips) {
          EXPECT_EQ(bytes_of(run.device(), got.scale_inv.row_range(0, wanted.scale_rows)), wanted.scales);
        }
        run.sharding().reshard();
      }
    });
  }
}

}  // namespace
}  // namespace fp8lab

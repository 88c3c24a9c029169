// Initial values that are kept in host memory: which rows a shard keeps of them, and for how long.

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "fsdp/sharded_run.h"
#include "nn/build.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using fsdp_test::bytes_of;
using fsdp_test::ModelRun;
using fsdp_test::on_ranks;
using fsdp_test::RunConfig;
using fsdp_test::small_block;

RunConfig config_with_copies(std::string_view recipe, bool deferred) {
  RunConfig config;
  config.recipe = recipe;
  config.layers = 2;
  config.config = small_block(make_recipe(recipe).rows_multiple > 32 ? 256 : 64);
  config.deferred_init = deferred;
  config.initial_in = InitialValuesIn::kHost;
  return config;
}

std::int64_t nominal_bytes(const Shape& shape, DType dtype) {
  return shape.numel() * static_cast<std::int64_t>(size_bytes(dtype));
}

class HostCopiesOfShards : public ::testing::TestWithParam<std::tuple<const char*, int, bool>> {};

// 3, 5 and 7 ranks have uneven shards. Those that would cut blocks are in high precision, and are their own values.
TEST_P(HostCopiesOfShards, HoldTheRowsOfShardsInEightBits) {
  const auto& [recipe, ranks, deferred] = GetParam();
  RunConfig plain = config_with_copies(recipe, deferred);
  plain.eight_bit_weights = false;  // its weights are the values that were cast
  ModelRun expected(plain);
  on_ranks(ranks, [&, recipe = recipe, deferred = deferred](ProcessGroup& world) {
    ModelRun run(config_with_copies(recipe, deferred), world, {.replicas = 1, .shards = world.size()});
    const HostCopies& copies = run.device().memory().host_copies();
    std::int64_t kept = 0, made = 0;
    for (std::size_t i = 0; i < run.model().parameters().size(); ++i) {
      const Parameter& parameter = *run.model().parameters()[i];
      const Parameter& shard = *parameter.local;
      SCOPED_TRACE(parameter.name);
      EXPECT_FALSE(parameter.initial.has_value()) << "they belong to the shard";
      ASSERT_TRUE(shard.initial.has_value());
      EXPECT_EQ(static_cast<bool>(shard.initial->kept), shard.in_eight_bits());
      if (!shard.in_eight_bits()) continue;
      kept += nominal_bytes(shard.spec.shape, shard.spec.dtype);
      made += nominal_bytes(parameter.spec.shape, parameter.spec.dtype);
      const auto bytes = shard.initial->kept.bytes();
      const std::vector<std::byte> all = bytes_of(expected.device(), expected.model().parameters()[i]->value);
      const std::int64_t row = nominal_bytes(parameter.spec.shape, parameter.spec.dtype) / dim0(parameter.spec.shape);
      const auto first = all.begin() + shard.first_row * row;
      EXPECT_EQ(std::vector(bytes.begin(), bytes.end()), std::vector(first, first + shard.spec.shape[0] * row));
    }
    EXPECT_EQ(copies.live_bytes(), kept);
    if (deferred)
      EXPECT_EQ(copies.peak_bytes(), kept) << "no rank ever had an unsharded parameter";
    else
      EXPECT_GE(copies.peak_bytes(), made);
  });
}

INSTANTIATE_TEST_SUITE_P(Matrix, HostCopiesOfShards,
                         ::testing::Combine(::testing::ValuesIn(support::quantized_recipe_names()),
                                            ::testing::Values(1, 2, 3, 5, 7), ::testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" + std::to_string(std::get<1>(test.param)) +
                                  (std::get<2>(test.param) ? "_deferred" : "_cut");
                         });

// Without these fixes shards of MXFP8 weights are in high precision.
TEST(HostCopiesOfShards, AreNotKeptOfShardsThatFellBackToHighPrecision) {
  for (bool Behaviors::* const reverted :
       {&Behaviors::split_in_eight_bits, &Behaviors::view_aligned_slices, &Behaviors::keep_fp8_init_metadata})
    on_ranks(2, [&](ProcessGroup& world) {
      RunConfig config = config_with_copies("mxfp8", reverted == &Behaviors::keep_fp8_init_metadata);
      config.behaviors.*reverted = false;
      ModelRun run(config, world, {.replicas = 1, .shards = 2});
      for (const Parameter* parameter : run.model().parameters())
        EXPECT_FALSE(parameter->local->in_eight_bits()) << parameter->name;
      EXPECT_EQ(run.device().memory().host_copies().live_bytes(), 0);
    });
}

// Initial values that are lost are lost to shards too; the eight bits are the same as ever.
TEST(HostCopiesOfShards, LostValuesLeaveTheSameEightBits) {
  for (const bool deferred : {true, false})
    for (const char* recipe : support::quantized_recipe_names())
      on_ranks(2, [&](ProcessGroup& world) {
        RunConfig config = config_with_copies(recipe, deferred);
        ModelRun kept(config, world, {.replicas = 1, .shards = 2});
        config.initial_in = InitialValuesIn::kLost;
        ModelRun lost(config, world, {.replicas = 1, .shards = 2});
        EXPECT_EQ(lost.device().memory().host_copies().peak_bytes(), 0);
        for (std::size_t i = 0; i < kept.model().parameters().size(); ++i) {
          const Parameter &a = *kept.model().parameters()[i]->local, &b = *lost.model().parameters()[i]->local;
          EXPECT_EQ(b.initial.has_value(), !b.in_eight_bits()) << b.name;
          EXPECT_EQ(bytes_of(kept.device(), a.quantized), bytes_of(lost.device(), b.quantized)) << a.name;
        }
      });
}

}  // namespace
}  // namespace fp8lab

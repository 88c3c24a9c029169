// Sharded training equals unsharded training: ranks with the same data, averaged over a power of two of them, get the
// very bits of one rank.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "fsdp/sharded_run.h"
#include "support/layer_names.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using fsdp_test::bytes_of;
using fsdp_test::ModelRun;
using fsdp_test::on_ranks;
using fsdp_test::RunConfig;
using fsdp_test::small_block;

using Bytes = std::vector<std::byte>;

struct Outcome {
  std::vector<float> losses;
  std::vector<Bytes> gradients;  ///< unsharded, by parameter
};

constexpr int kSteps = 2;

Outcome alone(const RunConfig& config) {
  ModelRun run(config);
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    run.model().zero_grad();
    outcome.losses.push_back(run.step());
  }
  for (const Parameter* parameter : run.model().parameters())
    outcome.gradients.push_back(bytes_of(run.device(), parameter->grad));
  return outcome;
}

Bytes rows_of(const Bytes& unsharded, const Parameter& parameter, int rank, int shards) {
  const RowSplit split(dim0(parameter.spec.shape), shards);
  const auto row = static_cast<std::ptrdiff_t>(row_elems(parameter.spec.shape)) *
                   static_cast<std::ptrdiff_t>(size_bytes(parameter.spec.dtype));
  return {unsharded.begin() + split.begin(rank) * row, unsharded.begin() + split.begin(rank + 1) * row};
}

void expect_equal(const RunConfig& config, const MeshShape& mesh) {
  const Outcome expected = alone(config);
  on_ranks(mesh.ranks(), [&](ProcessGroup& world) {
    ModelRun run(config, world, mesh);
    std::vector<float> losses;
    for (int step = 0; step < kSteps; ++step) {
      run.model().zero_grad();
      losses.push_back(run.step());
    }
    EXPECT_EQ(losses, expected.losses);
    const int shard = world.rank() % mesh.shards;
    for (std::size_t i = 0; i < expected.gradients.size(); ++i) {
      const Parameter& parameter = *run.model().parameters()[i];
      EXPECT_FALSE(parameter.value || parameter.grad || !parameter.quantized.empty())
          << parameter.name << " was not resharded";
      EXPECT_EQ(bytes_of(run.device(), parameter.local->grad),
                rows_of(expected.gradients[i], parameter, shard, mesh.shards))
          << parameter.name << " on rank " << world.rank();
    }
  });
}

class Sharded : public ::testing::TestWithParam<std::tuple<const char*, const char*, bool, bool>> {
 protected:
  RunConfig config() const {
    const auto& [recipe, layer, eight_bits, reshard] = GetParam();
    RunConfig config;
    config.recipe = recipe;
    config.layer = layer;
    config.eight_bit_weights = eight_bits;
    config.reshard = reshard;
    // Shards have 128 rows where blocks have as many.
    config.config = small_block(make_recipe(recipe).rows_multiple > 32 ? 256 : 64);
    return config;
  }
};

TEST_P(Sharded, FsdpEqualsOneRank) { expect_equal(config(), {.replicas = 1, .shards = 2}); }
TEST_P(Sharded, HsdpEqualsOneRank) { expect_equal(config(), {.replicas = 2, .shards = 2}); }

INSTANTIATE_TEST_SUITE_P(Matrix, Sharded,
                         ::testing::Combine(::testing::ValuesIn(support::recipe_names()),
                                            ::testing::ValuesIn(support::layer_names()), ::testing::Bool(),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" + std::get<1>(test.param) +
                                  (std::get<2>(test.param) ? "_8bit" : "_16bit") +
                                  (std::get<3>(test.param) ? "_reshard" : "_keep");
                         });

TEST(Sharded, RecomputationEqualsOneRank) {
  for (const char* recipe : support::quantized_recipe_names()) {
    RunConfig config;
    config.recipe = recipe;
    config.config = small_block(make_recipe(recipe).rows_multiple > 32 ? 256 : 64);
    config.checkpoint = true;
    expect_equal(config, {.replicas = 1, .shards = 2});
  }
}

struct UnevenCase {
  const char* recipe;
  std::int64_t hidden;
  std::int64_t ffn;
  int ranks;
};

// Weights whose blocks would be split stay in high precision.
TEST(Sharded, UnevenAndEmptyShardsEqualOneRank) {
  for (const UnevenCase& c : {UnevenCase{"bf16", 6, 22, 8}, UnevenCase{"delayed", 48, 144, 32},
                              UnevenCase{"current", 48, 144, 32}, UnevenCase{"mxfp8", 32, 160, 64}}) {
    RunConfig config;
    config.recipe = c.recipe;
    config.layer = "layernorm_mlp";
    config.config = small_block(c.hidden);
    config.config.ffn = c.ffn;
    bool uneven = false, empty = false;
    ModelRun run(config);
    for (const Parameter* parameter : run.model().parameters()) {
      const RowSplit split(dim0(parameter->spec.shape), c.ranks);
      for (int rank = 0; rank < c.ranks; ++rank) {
        uneven = uneven || (split.count(rank) > 0 && split.count(rank) < split.chunk());
        empty = empty || split.count(rank) == 0;
      }
    }
    EXPECT_TRUE(uneven && empty) << c.recipe;
    expect_equal(config, {.replicas = 1, .shards = c.ranks});
  }
}

// They start from the initial values and not from dequantized ones, which a deferred initialisation does not have.
TEST(Sharded, WeightsWhoseBlocksWouldBeCutStartFromTheirInitialValues) {
  RunConfig deferred, unsharded;
  deferred.recipe = "mxfp8";
  deferred.layer = "layernorm_mlp";
  deferred.config = small_block(64);
  unsharded = deferred;
  unsharded.deferred_init = false;
  on_ranks(4, [&](ProcessGroup& world) {
    ModelRun a(deferred, world, {.replicas = 1, .shards = 4}), b(unsharded, world, {.replicas = 1, .shards = 4});
    EXPECT_FALSE(b.sharding().warnings().empty()) << "no weight is refused";
    for (std::size_t i = 0; i < a.model().parameters().size(); ++i) {
      const Parameter &own = *a.model().parameters()[i]->local, &cut = *b.model().parameters()[i]->local;
      EXPECT_EQ(bytes_of(a.device(), own.value), bytes_of(b.device(), cut.value)) << own.name;
      EXPECT_EQ(bytes_of(a.device(), own.quantized), bytes_of(b.device(), cut.quantized)) << own.name;
    }
  });
}

}  // namespace
}  // namespace fp8lab

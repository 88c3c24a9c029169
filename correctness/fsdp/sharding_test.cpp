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
    // Shards have 128 rows if blocks have 128 rows.
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

RunConfig language_model(const char* form, bool tied, bool reshard) {
  RunConfig config;
  config.recipe = "current";
  config.layers = 2;
  config.config = small_block(64);
  config.config.form = layer_form(form);
  config.vocabulary = 43;  // 22, 11 or 6 rows a rank, the last with fewer
  config.tied_head = tied;
  config.reshard = reshard;
  return config;
}

TEST(ShardedLanguageModel, EqualsOneRank) {
  for (const char* form : {"gpt", "llama"})
    for (const bool tied : {false, true})
      for (const bool reshard : {false, true}) {
        RunConfig config = language_model(form, tied, reshard);
        config.gather_ahead = tied;
        config.checkpoint = reshard;
        config.deferred_init = tied == reshard;
        SCOPED_TRACE(std::string(form) + (tied ? ", tied" : ", own head") + (reshard ? ", resharded" : ", kept"));
        expect_equal(config, {.replicas = 1, .shards = 8});
        expect_equal(config, {.replicas = 2, .shards = 2});
      }
}

// Averages over 3 or 5 equal gradients are rounded, but forward reads the same weights: 15 or 9 rows, the last rank 13
// or 7.
TEST(ShardedLanguageModel, ForwardEqualsOneRankOverOddNumbersOfRanks) {
  for (const int ranks : {3, 5}) {
    const RunConfig config = language_model("gpt", ranks == 3, true);
    const float expected = ModelRun(config).step();
    on_ranks(ranks, [&](ProcessGroup& world) {
      ModelRun run(config, world, {.replicas = 1, .shards = ranks});
      EXPECT_EQ(run.step(), expected) << "rank " << world.rank() << " of " << ranks;
    });
  }
}

// As in FSDP2, the root's parameters stay gathered from forward to the end of backward, whatever the layers do.
TEST(ShardedLanguageModel, RootIsGatheredOnceAndKeptUntilBackwardEnds) {
  RunConfig config = language_model("gpt", false, true);
  on_ranks(2, [&](ProcessGroup& world) {
    ModelRun run(config, world, {.replicas = 1, .shards = 2});
    const auto gathers = [&] { return run.sharding().mesh().shard_group().traffic().of(CollectiveKind::kAllGather); };
    run.step();
    EXPECT_EQ(gathers().collectives, 2 * 2 + 1) << "each layer for either pass, and the root once";
    for (const Parameter* parameter : run.model().parameters()) EXPECT_FALSE(parameter->value) << parameter->name;
    // Without gradients nothing stays: there is no backward to free it.
    run.runtime().mode = Runtime::Mode::kEvaluating;
    const Tensor tokens = make_tokens(run.device(), std::vector<std::int32_t>(64, 3), 43, 0);
    run.model().forward(run.runtime(), {tokens, nullptr});
    for (const Parameter* parameter : run.model().parameters()) EXPECT_FALSE(parameter->value) << parameter->name;
  });
}

// N equal BF16 values have an exact FP32 sum for N up to 2^16, whose N-th part is rounded back to the value. So with
// FP32 reduction the ranks need not be a power of two, as they must with BF16. Ranks with different values are the
// plain twin's and the reference step's.
TEST(Sharded, Fp32ReductionEqualsOneRankOnAnyNumberOfRanks) {
  for (const char* recipe : {"bf16", "delayed", "current"})
    for (const MeshShape mesh : {MeshShape{.replicas = 1, .shards = 3}, MeshShape{.replicas = 1, .shards = 7},
                                 MeshShape{.replicas = 3, .shards = 2}, MeshShape{.replicas = 5, .shards = 1}}) {
      SCOPED_TRACE(testing::Message() << recipe << " on " << mesh.replicas << " x " << mesh.shards << " ranks");
      RunConfig config;
      config.recipe = recipe;
      config.layer = "layernorm_mlp";
      config.config = small_block(48);
      config.reduce_dtype = DType::kF32;
      expect_equal(config, mesh);
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

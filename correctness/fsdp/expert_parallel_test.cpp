// Ranks that have the experts of a layer between them, compared with one rank that has all of them and the same tokens.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/sharded_run.h"

namespace fp8lab {
namespace {

using fsdp_test::ModelRun;
using fsdp_test::on_ranks;
using fsdp_test::RunConfig;
using Gradients = std::map<std::string, std::vector<float>>;

/// A mixture of experts without attention, so that all tokens of a rank may come from anywhere.
RunConfig mixture(const char* recipe, std::int64_t experts, std::int64_t top_k, std::int64_t tokens) {
  RunConfig run;
  run.device = "cpu";
  run.recipe = recipe;
  run.layer = "layernorm_mlp";
  run.layers = 2;
  run.eight_bit_weights = false;
  run.reduce_dtype = DType::kF32;
  run.config = fsdp_test::small_block(128);
  run.config.form = layer_form("llama");
  run.config.ffn = 128;
  run.config.experts = experts;
  run.config.top_k = top_k;
  run.config.seq = tokens;
  run.config.batch = 1;
  return run;
}

Gradients gradients_of(ModelRun& run) {
  Gradients out;
  for (const Parameter* parameter : run.model().parameters())
    out[parameter->name] = run.device().read((parameter->local ? parameter->local : parameter)->grad);
  return out;
}

bool is_of_experts(const std::string& name) { return name.find(".fc") != std::string::npos; }

/// The gradients of every rank's shards, one after the other, and the mean loss, both of the last step; weights do not
/// change. Rank r has the r-th part of the tokens.
Gradients of_ranks(const RunConfig& config, const MeshShape& mesh, float& loss, int steps = 1) {
  std::vector<Gradients> all(static_cast<std::size_t>(mesh.ranks()));
  std::vector<float> losses(all.size());
  on_ranks(mesh.ranks(), [&](ProcessGroup& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    ModelRun run(config, world, mesh);
    for (int step = 0; step < steps; ++step) {
      run.model().zero_grad();
      losses[rank] = run.step(world.rank() * config.config.seq);
    }
    all[rank] = gradients_of(run);
  });
  Gradients out;
  for (const Gradients& of_rank : all)
    for (const auto& [name, values] : of_rank) out[name].insert(out[name].end(), values.begin(), values.end());
  loss = 0.0f;
  for (const float of_rank : losses) loss += of_rank / static_cast<float>(losses.size());
  return out;
}

// Tokens come to an expert in the order of ranks, as one rank has them, and blocks of scales are filled alike. So the
// gradients of experts have the same bits. Others are sums over the tokens of each rank and then over ranks, which
// round elsewhere. With 2 and 4 ranks means are exact.
TEST(ExpertParallel, ExpertsGetTheGradientsOfOneRankWithAllTokens) {
  struct Case {
    const char* recipe;
    std::int64_t experts, top_k, tokens;
    int ranks;
    bool eight_bit_weights = false;
  };
  for (const Case& c : {Case{"bf16", 4, 2, 32, 2}, Case{"bf16", 4, 1, 32, 4}, Case{"bf16", 32, 3, 8, 4},
                        Case{"bf16", 4, 3, 16, 4}, Case{"mxfp8", 8, 2, 32, 4}, Case{"block", 4, 2, 128, 2},
                        Case{"mxfp8", 8, 2, 32, 4, true}, Case{"block", 4, 2, 128, 2, true}}) {
    const std::string text =
        std::string(c.recipe) + ", " + std::to_string(c.experts) + " experts on " + std::to_string(c.ranks) + " ranks";
    const auto config = [&](std::int64_t tokens) {
      RunConfig run = mixture(c.recipe, c.experts, c.top_k, tokens);
      run.eight_bit_weights = c.eight_bit_weights;
      return run;
    };
    ModelRun alone(config(c.tokens * c.ranks));
    const float expected_loss = alone.step();
    const Gradients expected = gradients_of(alone);
    float loss = 0.0f;
    const Gradients seen =
        of_ranks(config(c.tokens), {.replicas = 1, .shards = c.ranks, .expert_parallel = c.ranks}, loss);
    EXPECT_NEAR(loss, expected_loss, std::abs(expected_loss) * 0x1p-20) << text;
    for (const auto& [name, values] : expected) {
      const std::vector<float>& own = seen.at(name);
      ASSERT_EQ(own.size(), values.size()) << text << ", " << name;
      if (is_of_experts(name)) {
        EXPECT_TRUE(own == values) << text << ", " << name;
        continue;
      }
      // Each rank's part and the sum are rounded to BF16.
      double largest = 0.0, farthest = 0.0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(values[i])));
        farthest = std::max(farthest, std::abs(static_cast<double>(own[i]) - static_cast<double>(values[i])));
      }
      EXPECT_LE(farthest, 0x1p-6 * largest) << text << ", " << name;
    }
  }
}

// Rows have the same casts before and after their way, so that losses, the gradients of inputs and what follows from
// these have the same bits. What the gradients of experts read along columns is cast twice under blocks, and is the
// transpose of the same bytes under one scale of all ranks. The second step has scales from the first one's amaxes.
TEST(ExpertParallel, CastsBeforeTheWayChangeOnlyCastsAlongColumns) {
  struct Case {
    const char* recipe;
    std::int64_t experts, top_k, tokens;
    MeshShape mesh;
    bool checkpoint;
    std::optional<bool> same_experts;  ///< absent: whether it is so depends on the data
  };
  for (const Case& c : {Case{"delayed", 4, 2, 32, {.shards = 4, .expert_parallel = 2}, false, true},
                        Case{"delayed", 32, 1, 16, {.replicas = 2, .shards = 2, .expert_parallel = 2}, true, true},
                        Case{"mxfp8", 8, 2, 32, {.shards = 4, .expert_parallel = 4}, true, std::nullopt},
                        Case{"block", 4, 2, 128, {.shards = 2, .expert_parallel = 2}, false, false}}) {
    RunConfig config = mixture(c.recipe, c.experts, c.top_k, c.tokens);
    config.checkpoint = c.checkpoint;
    float expected_loss = 0.0f, loss = 0.0f;
    const Gradients expected = of_ranks(config, c.mesh, expected_loss, 2);
    config.config.fp8_dispatch = true;
    const Gradients seen = of_ranks(config, c.mesh, loss, 2);
    EXPECT_EQ(loss, expected_loss) << c.recipe;
    bool same_experts = true;
    for (const auto& [name, values] : expected) {
      const bool same = seen.at(name) == values;
      if (is_of_experts(name))
        same_experts = same_experts && same;
      else
        EXPECT_TRUE(same) << c.recipe << ", " << name;
    }
    EXPECT_EQ(same_experts, c.same_experts.value_or(same_experts)) << c.recipe;
  }
}

// Shards of experts and replicas change only who has which rows, and how many partial sums there are.
TEST(ExpertParallel, ShardsOfExpertsAndReplicasChangeNoLoss) {
  const RunConfig config = mixture("bf16", 4, 2, 16);
  float all_experts = 0.0f;
  const Gradients expected = of_ranks(config, {.replicas = 1, .shards = 8}, all_experts);
  for (const MeshShape mesh : {MeshShape{.replicas = 1, .shards = 8, .expert_parallel = 2},
                               MeshShape{.replicas = 1, .shards = 8, .expert_parallel = 4},
                               MeshShape{.replicas = 2, .shards = 4, .expert_parallel = 2},
                               MeshShape{.replicas = 4, .shards = 2, .expert_parallel = 2}}) {
    float loss = 0.0f;
    const Gradients seen = of_ranks(config, mesh, loss);
    EXPECT_EQ(loss, all_experts) << mesh.replicas << " x " << mesh.shards << ", " << mesh.expert_parallel;
    for (const auto& [name, values] : expected) {
      double sum = 0.0, expected_sum = 0.0;
      for (const float value : seen.at(name)) sum += std::abs(static_cast<double>(value)) / mesh.replicas;
      for (const float value : values) expected_sum += std::abs(static_cast<double>(value));
      EXPECT_NEAR(sum, expected_sum, expected_sum * 0x1p-7) << name << ", " << mesh.expert_parallel;
    }
  }
}

// Initial values follow from an element's place among all experts.
TEST(ExpertParallel, InitialValuesAreThoseOfAllExperts) {
  RunConfig config = mixture("bf16", 4, 2, 16);
  ModelRun alone(config);
  std::map<std::string, std::vector<float>> expected;
  for (const Parameter* parameter : alone.model().parameters())
    expected[parameter->name] = alone.device().read(parameter->value);
  for (const bool deferred : {true, false}) {
    config.deferred_init = deferred;
    on_ranks(4, [&](ProcessGroup& world) {
      const int part = world.rank() % 2;
      ModelRun run(config, world, {.replicas = 1, .shards = 4, .expert_parallel = 2});
      run.sharding().unshard(run.runtime());
      for (const Parameter* parameter : run.model().parameters()) {
        const std::vector<float>& all = expected.at(parameter->name);
        const std::vector<float> own = run.device().read(parameter->value);
        const bool split = is_of_experts(parameter->name);
        ASSERT_EQ(own.size() * (split ? 2 : 1), all.size()) << parameter->name;
        const auto first = all.begin() + (split ? part * std::ssize(own) : 0);
        EXPECT_TRUE(std::equal(own.begin(), own.end(), first)) << parameter->name << " on rank " << world.rank();
      }
      run.sharding().reshard();
    });
  }
}

}  // namespace
}  // namespace fp8lab

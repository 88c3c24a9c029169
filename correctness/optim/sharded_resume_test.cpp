// Checkpoints of a sharded model: what goes on from one is what would have gone on, on as many ranks and on others. Ranks see the
// same data here, so that averages over a power of two of them are exact and the number of ranks shows in no bit.

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/sharded_run.h"
#include "harness/temporary_directory.h"
#include "optim/checkpoint.h"

namespace fp8lab {
namespace {

using fsdp_test::ModelRun;
using fsdp_test::on_ranks;
using fsdp_test::RunConfig;

constexpr int kStepsBefore = 2, kStepsAfter = 3;

/// A sharded model in training.
class Training {
 public:
  Training(const RunConfig& config, ProcessGroup& world)
      : run_(config, world, {.replicas = 1, .shards = world.size()}),
        adam_(run_.model().parameters(), {.learning_rate = 1e-2, .master = MasterWeights::kF32}) {}

  std::vector<float> train(int steps) {
    std::vector<float> losses;
    for (int i = 0; i < steps; ++i) {
      losses.push_back(run_.step());
      adam_.step(run_.runtime());
      run_.model().zero_grad();
    }
    return losses;
  }
  void save(const std::filesystem::path& folder) {
    save_checkpoint(run_.runtime(), folder, state(), &run_.sharding().mesh().shard_group());
  }
  void load(const std::filesystem::path& folder) {
    run_.runtime().step = load_checkpoint(run_.runtime(), folder, state(), &run_.sharding().mesh().shard_group());
  }

 private:
  TrainingState state() {
    const Registry& registry = run_.model().registry();
    return {.parameters = run_.model().parameters(),
            .optimizer = &adam_,
            .forward_scales = registry.forward_scales,
            .backward_scales = registry.backward_scales,
            .step = run_.runtime().step};
  }

  ModelRun run_;
  Adam adam_;
};

class ShardedResume : public ::testing::TestWithParam<std::tuple<const char*, int, int>> {};

TEST_P(ShardedResume, GoesOnAsIfItHadNeverStopped) {
  const auto& [recipe, saved_on, loaded_on] = GetParam();
  RunConfig config;
  config.recipe = recipe;
  config.layer = "layernorm_mlp";
  config.config = fsdp_test::small_block(128);
  const sample::TemporaryDirectory folder;
  std::mutex mutex;
  std::vector<float> expected;
  on_ranks(saved_on, [&](ProcessGroup& world) {
    Training training(config, world);
    training.train(kStepsBefore);
    training.save(folder.string());
    const std::vector<float> losses = training.train(kStepsAfter);
    const std::scoped_lock lock(mutex);
    expected = losses;
  });
  on_ranks(loaded_on, [&](ProcessGroup& world) {
    Training training(config, world);
    training.load(folder.string());
    EXPECT_EQ(training.train(kStepsAfter), expected) << "rank " << world.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(Recipes, ShardedResume,
                         ::testing::Combine(::testing::Values("bf16", "delayed", "current", "mxfp8"),
                                            ::testing::Values(1, 2, 4), ::testing::Values(1, 2, 4)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_from_" +
                                  std::to_string(std::get<1>(test.param)) + "_to_" +
                                  std::to_string(std::get<2>(test.param));
                         });

}  // namespace
}  // namespace fp8lab

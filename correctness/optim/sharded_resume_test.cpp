// Checkpoints of a sharded model: what goes on from one is what would have gone on, on as many ranks and on others. Ranks see the
// same data here, so that averages over a power of two of them are exact and the number of ranks shows in no bit.

#include <gtest/gtest.h>

#include <cmath>
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

  /// Of the first product's forward, [input, weight]; what they become is as good as recorded.
  std::vector<float> live_amaxes() { return run_.device().read(live()); }
  void set_live_amaxes(const std::vector<float>& amaxes) { run_.device().write(live(), amaxes); }

 private:
  Tensor live() { return run_.model().registry().forward_scales.front()->delayed()->amaxes(); }

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

// A save between a forward and its update: other ranks go on with the largest amax of all, and with NaN where any has it.
TEST(SavedAmaxes, OfAllRanksCount) {
  RunConfig config;
  config.recipe = "delayed";
  config.layer = "layernorm_mlp";
  config.config = fsdp_test::small_block(128);
  for (const int with_nan : {0, 1}) {
    const sample::TemporaryDirectory folder;
    on_ranks(2, [&](ProcessGroup& world) {
      Training training(config, world);
      training.train(1);
      const auto rank = static_cast<float>(world.rank());
      training.set_live_amaxes({world.rank() == with_nan ? std::nanf("") : 2.0f, 5.0f - rank});
      training.save(folder.string());
    });
    on_ranks(1, [&](ProcessGroup& world) {
      Training training(config, world);
      training.load(folder.string());
      const std::vector<float> amaxes = training.live_amaxes();
      ASSERT_EQ(amaxes.size(), 2u);
      EXPECT_TRUE(std::isnan(amaxes[0])) << "of rank " << with_nan;
      EXPECT_EQ(amaxes[1], 5.0f);
    });
  }
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

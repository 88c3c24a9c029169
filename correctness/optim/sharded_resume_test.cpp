// Checkpoints of a sharded model: training that continues from one equals training that never stopped, on equally many
// ranks and on others. Ranks have the same data here, so that averages over a power of two of them are exact and no bit
// depends on the number of ranks.

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fsdp/sharded_run.h"
#include "harness/temporary_directory.h"
#include "optim/saved_state.h"
#include "support/dense.h"

namespace fp8lab {
namespace {

using fsdp_test::ModelRun;
using fsdp_test::RunConfig;

constexpr int kStepsBefore = 2, kStepsAfter = 3;

/// A sharded model in training.
class Training {
 public:
  Training(const RunConfig& config, ProcessGroup& world, MasterWeights master = MasterWeights::kF32)
      : run_(config, world, {.replicas = 1, .shards = world.size()}),
        adam_(run_.model().parameters(), {.learning_rate = 1e-2, .master = master}) {}

  std::vector<float> train(int steps) {
    std::vector<float> losses;
    for (int i = 0; i < steps; ++i) {
      losses.push_back(run_.step());
      adam_.step(run_.runtime());
      run_.model().zero_grad();
    }
    return losses;
  }
  void save(const std::filesystem::path& folder, bool with_optimizer = true) {
    save_training_state(run_.runtime(), folder, state(with_optimizer), &run_.sharding().mesh().shard_group());
  }
  void load(const std::filesystem::path& folder, bool with_optimizer = true) {
    run_.runtime().step =
        load_training_state(run_.runtime(), folder, state(with_optimizer), &run_.sharding().mesh().shard_group());
  }
  /// The number of weights that are not kept in eight bits because the cut would split blocks.
  std::size_t refused() { return run_.sharding().warnings().size(); }

  /// The live amaxes of the first product's forward, [input, weight]. A test may set them as if they had been recorded.
  std::vector<float> live_amaxes() { return run_.device().read(live()); }
  void set_live_amaxes(const std::vector<float>& amaxes) { run_.device().write(live(), amaxes); }

 private:
  Tensor live() { return run_.model().registry().forward_scales.front()->delayed()->amaxes(); }

  TrainingState state(bool with_optimizer) {
    const Registry& registry = run_.model().registry();
    return {.parameters = run_.model().parameters(),
            .optimizer = with_optimizer ? &adam_ : nullptr,
            .forward_scales = registry.forward_scales,
            .backward_scales = registry.backward_scales,
            .step = run_.runtime().step};
  }

  ModelRun run_;
  Adam adam_;
};

/// Runs a training on every rank and returns result_of(training), which must be equal on all ranks.
template <class ResultOf>
auto of_all_ranks(const RunConfig& config, int ranks, const ResultOf& result_of) {
  std::optional<decltype(result_of(std::declval<Training&>()))> common;
  std::mutex mutex;
  fsdp_test::on_ranks(ranks, [&](ProcessGroup& world) {
    Training training(config, world);
    auto own = result_of(training);
    const std::scoped_lock lock(mutex);
    EXPECT_TRUE(!common || *common == own) << "rank " << world.rank();
    common = std::move(own);
  });
  return *common;
}

/// Losses of the steps after a checkpoint is saved, and after it is loaded.
std::vector<float> saved(const RunConfig& config, int ranks, const std::filesystem::path& folder) {
  return of_all_ranks(config, ranks, [&](Training& training) {
    training.train(kStepsBefore);
    training.save(folder);
    return training.train(kStepsAfter);
  });
}
std::vector<float> resumed(const RunConfig& config, int ranks, const std::filesystem::path& folder) {
  return of_all_ranks(config, ranks, [&](Training& training) {
    training.load(folder);
    return training.train(kStepsAfter);
  });
}

class ShardedResume : public ::testing::TestWithParam<std::tuple<const char*, int, int>> {};

TEST_P(ShardedResume, ContinuesAsIfItHadNeverStopped) {
  const auto& [recipe, saved_on, loaded_on] = GetParam();
  RunConfig config;
  config.recipe = recipe;
  config.layer = "layernorm_mlp";
  config.config = fsdp_test::small_block(128);
  const sample::TemporaryDirectory folder;
  const std::vector<float> expected = saved(config, saved_on, folder.string());
  EXPECT_EQ(resumed(config, loaded_on, folder.string()), expected);
}

// A save between a forward and its update: other ranks continue with the largest amax of all ranks, and with NaN if any
// rank has it.
TEST(SavedAmaxes, AreTheLargestOfAllRanks) {
  RunConfig config;
  config.recipe = "delayed";
  config.layer = "layernorm_mlp";
  config.config = fsdp_test::small_block(128);
  for (const int with_nan : {0, 1}) {
    const sample::TemporaryDirectory folder;
    fsdp_test::on_ranks(2, [&](ProcessGroup& world) {
      Training training(config, world);
      training.train(1);
      const auto rank = static_cast<float>(world.rank());
      training.set_live_amaxes({world.rank() == with_nan ? std::nanf("") : 2.0f, 5.0f - rank});
      training.save(folder.string());
    });
    fsdp_test::on_ranks(1, [&](ProcessGroup& world) {
      Training training(config, world);
      training.load(folder.string());
      const std::vector<float> amaxes = training.live_amaxes();
      ASSERT_EQ(amaxes.size(), 2u);
      EXPECT_TRUE(std::isnan(amaxes[0])) << "of rank " << with_nan;
      EXPECT_EQ(amaxes[1], 5.0f);
    });
  }
}

struct OtherForm {
  const char* recipe;
  int hidden;
  int saved_on;
  int loaded_on;
};

RunConfig config_of(const OtherForm& form) {
  RunConfig config;
  config.recipe = form.recipe;
  config.layer = "layernorm_mlp";
  config.config = fsdp_test::small_block(form.hidden);
  if (make_recipe(form.recipe).rows_multiple > 32) config.config.seq = 64;
  return config;
}

/// Ranks that keep an FP8 weight, and others whose cut would split its blocks, so that they do not.
class OtherForms : public ::testing::TestWithParam<OtherForm> {};

TEST_P(OtherForms, ContinueAsIfTrainingHadNeverStopped) {
  const RunConfig config = config_of(GetParam());
  const sample::TemporaryDirectory folder;
  const auto refused_on = [&](int ranks) {
    return of_all_ranks(config, ranks, [](Training& training) { return training.refused(); });
  };
  ASSERT_NE(refused_on(GetParam().saved_on), refused_on(GetParam().loaded_on)) << "both have the same form";
  std::vector<float> expected = saved(config, GetParam().saved_on, folder.string());
  // The average over three ranks is rounded, so their own continuation differs. One rank keeps the weight in the same
  // form as they do.
  if (GetParam().saved_on == 3) expected = resumed(config, 1, folder.string());
  EXPECT_EQ(resumed(config, GetParam().loaded_on, folder.string()), expected);
}

INSTANTIATE_TEST_SUITE_P(Cuts, OtherForms,
                         ::testing::Values(OtherForm{"mxfp8", 96, 3, 2}, OtherForm{"mxfp8", 96, 1, 2},
                                           OtherForm{"mxfp8", 96, 2, 1}, OtherForm{"mxfp8", 96, 1, 4},
                                           OtherForm{"block", 256, 2, 4}, OtherForm{"block", 256, 4, 2}),
                         [](const auto& test) {
                           return std::string(test.param.recipe) + "_from_" + std::to_string(test.param.saved_on) +
                                  "_to_" + std::to_string(test.param.loaded_on);
                         });

// A checkpoint that is loaded and saved under a cut that splits blocks still has the same contents.
TEST(SplitBlocksOfAModel, AreRestoredUnchanged) {
  const RunConfig config = config_of({"mxfp8", 96, 1, 2});
  for (const MasterWeights master : {MasterWeights::kF32, MasterWeights::kRemainder}) {
    const sample::TemporaryDirectory folder;
    std::vector<float> expected;
    fsdp_test::on_ranks(1, [&](ProcessGroup& world) {
      Training training(config, world, master);
      training.train(kStepsBefore);
      training.save(folder.string());
      expected = training.train(kStepsAfter);
    });
    fsdp_test::on_ranks(2, [&](ProcessGroup& world) {
      Training training(config, world, master);
      training.load(folder.string());
      training.save(folder.string());
    });
    fsdp_test::on_ranks(1, [&](ProcessGroup& world) {
      Training training(config, world, master);
      training.load(folder.string());
      EXPECT_EQ(training.train(kStepsAfter), expected);
    });
  }
}

TEST(SplitBlocksOfAModel, NeedASavedMaster) {
  RunConfig config = config_of({"mxfp8", 96, 1, 2});
  config.layer = "linear";
  for (const int saved_on : {1, 2}) {
    const sample::TemporaryDirectory folder;
    fsdp_test::on_ranks(saved_on, [&](ProcessGroup& world) {
      Training training(config, world);
      training.train(kStepsBefore);
      training.save(folder.string(), false);
    });
    fsdp_test::on_ranks(3 - saved_on, [&](ProcessGroup& world) {
      Training training(config, world), untouched(config, world);
      training.train(1);
      untouched.train(1);
      const std::string message = support::error_of([&] { training.load(folder.string(), false); });
      EXPECT_NE(message.find("layers[0]"), std::string::npos) << message;
      EXPECT_NE(message.find("from its master, which was not saved"), std::string::npos) << message;
      EXPECT_EQ(training.train(1), untouched.train(1));
    });
  }
}

// Loading without an optimizer needs the master in the files only.
TEST(SplitBlocksOfAModel, AreCastWithoutAnOptimizer) {
  RunConfig config = config_of({"mxfp8", 96, 1, 2});
  config.layer = "linear";
  const sample::TemporaryDirectory folder;
  float expected = 0.0f;
  fsdp_test::on_ranks(1, [&](ProcessGroup& world) {
    Training training(config, world);
    training.train(kStepsBefore);
    training.save(folder.string());
    expected = training.train(1).front();
  });
  fsdp_test::on_ranks(2, [&](ProcessGroup& world) {
    Training training(config, world);
    training.load(folder.string(), false);
    EXPECT_EQ(training.train(1).front(), expected);
  });
}

/// The error of rank 0 that loads on `loaded_on` ranks what `saved_on` ranks saved without a fix.
std::string error_of_loading(const char* recipe, bool Behaviors::* fix, int saved_on, int loaded_on) {
  RunConfig config = config_of({recipe, 64, saved_on, loaded_on});
  config.layer = "linear";
  config.behaviors.*fix = false;
  const sample::TemporaryDirectory folder;
  saved(config, saved_on, folder.string());
  std::string message;
  fsdp_test::on_ranks(loaded_on, [&](ProcessGroup& world) {
    Training training(config, world);
    const std::string own = support::error_of([&] { training.load(folder.string()); });
    if (world.rank() == 0) message = own;
  });
  return message;
}

// resume-shards.yaml and resume-quantized.yaml show both defects on equally many ranks.
TEST(StateSavedAsOneTensor, CannotBeLoadedIntoShardsOfAnotherSize) {
  for (const auto& [saved_on, loaded_on] : {std::pair{2, 4}, {4, 2}, {2, 1}, {1, 2}}) {
    const std::string message = error_of_loading("bf16", &Behaviors::shard_saved_state, saved_on, loaded_on);
    EXPECT_NE(message.find("weight: exp_avg': its size does not match"), std::string::npos) << message;
  }
}

TEST(WeightsSavedDequantized, CannotBeLoadedIntoShardsWithoutAStorage) {
  const std::string message = error_of_loading("mxfp8", &Behaviors::keep_type_in_moves, 2, 2);
  EXPECT_NE(message.find("weight: value': sharding needs the address of its storage"), std::string::npos) << message;
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

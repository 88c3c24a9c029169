// Witnesses of fixes to saved training state, and tests of these fixes in cases that the witness does not cover: uneven
// shards, other ranks, recipes whose weights cannot be loaded.

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "fixes/witness.h"
#include "fsdp/sharded_run.h"
#include "harness/temporary_directory.h"
#include "optim/saved_state.h"
#include "support/dense.h"

namespace fp8lab {
namespace {

using fsdp_test::bytes_of;
using fsdp_test::ModelRun;
using fsdp_test::on_ranks;
using fsdp_test::RunConfig;
using sample::TemporaryDirectory;
using Bytes = std::vector<std::vector<std::byte>>;

/// A layer with one weight of 64 x 64.
RunConfig one_weight(const char* recipe, const Behaviors& behaviors) {
  RunConfig config;
  config.recipe = recipe;
  config.layer = "linear";
  config.config = fsdp_test::small_block(64);
  config.config.form = layer_form("llama");
  config.behaviors = behaviors;
  return config;
}

/// A model in training, on one rank or sharded over all ranks of a world.
class Training {
 public:
  explicit Training(const RunConfig& config) : run_(config), adam_(run_.model().parameters(), kOptions) {}
  Training(const RunConfig& config, ProcessGroup& world)
      : run_(config, world, {.replicas = 1, .shards = world.size()}),
        shards_(&run_.sharding().mesh().shard_group()),
        adam_(run_.model().parameters(), kOptions) {}

  void train() {
    run_.step();
    adam_.step(run_.runtime());
    run_.model().zero_grad();
  }
  void save(const std::filesystem::path& folder) { save_training_state(run_.runtime(), folder, state(), shards_); }
  void load(const std::filesystem::path& folder) { load_training_state(run_.runtime(), folder, state(), shards_); }

  Bytes optimizer_state() {
    const AdamState& adam = adam_.state().front();
    return {bytes_of(run_.device(), adam.exp_avg), bytes_of(run_.device(), adam.exp_avg_sq),
            bytes_of(run_.device(), adam.master)};
  }
  Bytes weight() {
    const Parameter& parameter = *run_.model().parameters().front();
    return bytes_of(run_.device(), (parameter.local != nullptr ? *parameter.local : parameter).quantized);
  }

 private:
  static constexpr AdamOptions kOptions{.learning_rate = 1e-3, .master = MasterWeights::kF32};

  TrainingState state() {
    const Registry& registry = run_.model().registry();
    return {.parameters = run_.model().parameters(),
            .optimizer = &adam_,
            .forward_scales = registry.forward_scales,
            .backward_scales = registry.backward_scales,
            .step = run_.runtime().step};
  }

  ModelRun run_;
  ProcessGroup* shards_ = nullptr;
  Adam adam_;
};

/// True if `part` of the state, saved and loaded on two ranks, is the same bytes again on both.
bool is_restored(const RunConfig& config, Bytes (Training::*part)()) {
  const TemporaryDirectory folder;
  std::atomic<int> equal = 0;
  on_ranks(2, [&](ProcessGroup& world) {
    Training training(config, world), resumed(config, world);
    training.train();
    training.save(folder.string());
    resumed.load(folder.string());
    equal += (resumed.*part)() == (training.*part)();
  });
  return equal == 2;
}

bool ranks_get_their_own_state(const Behaviors& behaviors) {
  return is_restored(one_weight("bf16", behaviors), &Training::optimizer_state);
}

bool weights_stay_quantized(const Behaviors& behaviors) {
  return is_restored(one_weight("delayed", behaviors), &Training::weight);
}

/// The error of loading on `loaded_on` ranks what `saved_on` ranks saved; empty if all went well.
std::string error_of_loading(const RunConfig& config, int saved_on, int loaded_on) {
  const TemporaryDirectory folder;
  on_ranks(saved_on, [&](ProcessGroup& world) {
    Training training(config, world);
    training.train();
    training.save(folder.string());
  });
  std::string message;
  on_ranks(loaded_on, [&](ProcessGroup& world) {
    Training training(config, world);
    const std::string own = support::error_of([&] { training.load(folder.string()); });
    if (world.rank() == 0) message = own;
  });
  return message;
}

// Over five ranks, 64 rows are four shards of 13 and one of 12.
TEST(StateSavedAsOneTensor, CannotBeLoadedIntoShardsOfAnotherSize) {
  for (const auto& [saved_on, loaded_on] : {std::pair{2, 4}, {4, 2}, {2, 1}, {1, 2}, {5, 5}}) {
    const RunConfig reverted = one_weight("bf16", fixes_test::without("shard_saved_state"));
    const std::string message = error_of_loading(reverted, saved_on, loaded_on);
    const char* const what =
        saved_on == loaded_on ? "its size does not match" : "weight: exp_avg': its size does not match";
    EXPECT_NE(message.find(what), std::string::npos) << message;
    EXPECT_EQ(error_of_loading(one_weight("bf16", {}), saved_on, loaded_on), "") << saved_on << " to " << loaded_on;
  }
}

// On a single rank one copy is all there is.
TEST(StateSavedAsOneTensor, IsRestoredOnOneRank) {
  const TemporaryDirectory folder;
  on_ranks(1, [&](ProcessGroup& world) {
    const RunConfig config = one_weight("bf16", fixes_test::without("shard_saved_state"));
    Training training(config, world), resumed(config, world);
    training.train();
    training.save(folder.string());
    resumed.load(folder.string());
    EXPECT_EQ(resumed.optimizer_state(), training.optimizer_state());
  });
}

TEST(WeightsSavedDequantized, CannotBeLoadedIntoShardsWithoutAStorage) {
  const Behaviors reverted = fixes_test::without("keep_type_in_moves");
  const std::string message = error_of_loading(one_weight("mxfp8", reverted), 2, 2);
  EXPECT_NE(message.find("weight: value': sharding needs the address of its storage"), std::string::npos) << message;
  EXPECT_EQ(error_of_loading(one_weight("mxfp8", {}), 2, 2), "");
  // Four shards of 16 rows would split blocks of 32, so they are in high precision.
  EXPECT_EQ(error_of_loading(one_weight("mxfp8", reverted), 4, 4), "");
  for (const char* recipe : {"delayed", "current"})
    EXPECT_EQ(error_of_loading(one_weight(recipe, reverted), 5, 5), "") << recipe;
}

// Unsharded MXFP8 is loaded, but its column-wise data is a cast of its row-wise data.
TEST(WeightsSavedDequantized, AreCastFromTheirRowwiseValues) {
  for (const auto& [behaviors, equal] :
       {std::pair{fixes_test::without("keep_type_in_moves"), false}, {Behaviors{}, true}}) {
    const TemporaryDirectory folder;
    const RunConfig config = one_weight("mxfp8", behaviors);
    Training training(config), resumed(config);
    training.train();
    training.save(folder.string());
    resumed.load(folder.string());
    EXPECT_EQ(resumed.optimizer_state(), training.optimizer_state());
    EXPECT_EQ(resumed.weight() == training.weight(), equal);
  }
}

}  // namespace

std::span<const fixes_test::Witness> fixes_test::saved_state_witnesses() {
  static constexpr Witness kWitnesses[] = {
      {"shard_saved_state", ranks_get_their_own_state},
      {"keep_type_in_moves", weights_stay_quantized},
  };
  return kWitnesses;
}

}  // namespace fp8lab

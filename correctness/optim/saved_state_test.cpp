// Checkpoints: training continues as if it had not stopped, on equally many ranks or others.

#include "optim/saved_state.h"

#include <gtest/gtest.h>

#include <cmath>

#include "optim/saved_state_runs.h"
#include "reference/compare.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using namespace optim_test;
using reference::bitwise_equal;

class OtherRanks : public ::testing::TestWithParam<const char*> {};

TEST_P(OtherRanks, ContinueAsTheSameTraining) {
  const Everything expected =
      on_ranks(GetParam(), kOneRank, kOptions, [](ProcessGroup&, Rank& rank) { rank.run(1, 4); });
  for (const auto& [from, to] :
       {std::pair{kThree, kUneven}, {kUneven, kEmpty}, {kEmpty, kOneRank}, {kOneRank, kThree}, {kEmpty, kEmpty}}) {
    const TemporaryDirectory folder;
    on_ranks(GetParam(), from, kOptions, [&](ProcessGroup& group, Rank& rank) {
      rank.run(1, 2);
      save_training_state(rank.runtime, path_of(folder), rank.state(), &group);
    });
    const Everything actual = on_ranks(GetParam(), to, kOptions, [&](ProcessGroup& group, Rank& rank) {
      EXPECT_EQ(load_training_state(rank.runtime, path_of(folder), rank.state(), &group), 7);
      rank.run(3, 4);
    });
    EXPECT_TRUE(bitwise_equal(actual.master, expected.master)) << from.size() << " to " << to.size();
    EXPECT_TRUE(bitwise_equal(actual.exp_avg, expected.exp_avg));
    EXPECT_TRUE(bitwise_equal(actual.data, expected.data));
    EXPECT_TRUE(bitwise_equal(actual.vector, expected.vector));
  }
}
INSTANTIATE_TEST_SUITE_P(Recipes, OtherRanks, ::testing::ValuesIn(support::quantized_recipe_names()),
                         [](const auto& test) { return std::string(test.param); });

// Right after loading, quantized data equal the saved ones wherever no block is split; split blocks are cast from the
// master.
TEST(SplitBlocks, AreCastFromTheMaster) {
  const TemporaryDirectory folder;
  const auto two_steps = [&](ProcessGroup& group, Rank& rank) {
    rank.run(1, 2);
    save_training_state(rank.runtime, path_of(folder), rank.state(), &group);
  };
  const Everything saved = on_ranks("block", kThree, kOptions, two_steps);
  const auto load = [&](ProcessGroup& group, Rank& rank) {
    load_training_state(rank.runtime, path_of(folder), rank.state(), &group);
    Device& device = *rank.device;
    const Parameter& shard = *rank.matrix.shard;
    const Tensor rounded = cast(device, rank.adam.state().front().master, DType::kBF16, support::anyone(device));
    EXPECT_EQ(all_bytes(device, shard.quantized), all_bytes(device, quantize(device, rounded, *shard.quantizer)));
  };
  const Everything aligned = on_ranks("block", kUneven, kOptions, load),
                   split = on_ranks("block", {0, 100, 384}, kOptions, load);
  EXPECT_EQ(aligned.data, saved.data);
  EXPECT_EQ(split.master, saved.master);
}

TEST(SplitBlocks, NeedAMaster) {
  const TemporaryDirectory folder;
  on_ranks("mxfp8", kThree, kOptions, [&](ProcessGroup& group, Rank& rank) {
    rank.run(1, 1);
    save_training_state(rank.runtime, path_of(folder), rank.state(), &group);
  });
  const auto load = [&](ProcessGroup& group, Rank& rank) {
    rank.run(1, 1);
    const auto before = all_bytes(*rank.device, rank.matrix.shard->quantized);
    const std::string message =
        support::error_of([&] { load_training_state(rank.runtime, path_of(folder), rank.state(false), &group); });
    EXPECT_NE(message.find("w: "), std::string::npos) << message;
    EXPECT_NE(message.find("master"), std::string::npos) << message;
    EXPECT_EQ(all_bytes(*rank.device, rank.matrix.shard->quantized), before);
  };
  on_ranks("mxfp8", kUneven, kOptions, load);
  // Under the same cut the bytes are restored as they are.
  on_ranks("mxfp8", kThree, kOptions, [&](ProcessGroup& group, Rank& rank) {
    rank.run(1, 1);
    load_training_state(rank.runtime, path_of(folder), rank.state(false), &group);
  });
}

// An f32 parameter has no separate master: if other ranks keep it in eight bits, it becomes their master.
TEST(SplitBlocks, OfF32AreCastFromTheValueAndRestored) {
  const TemporaryDirectory plain, cast_down;
  const auto train = [](ProcessGroup& group, const char* recipe, const auto& work) {
    const std::unique_ptr<Device> device = open_host();
    Runtime runtime{.device = *device, .behaviors = {}};
    const std::int64_t rows = 64 / group.size();
    const ParameterSpec spec{
        .shape = {rows, 128}, .dtype = DType::kF32, .recipe = recipe, .first_row = group.rank() * rows};
    Sharded matrix(*device, spec, {64, 128});
    const std::vector<Parameter*> list = {&matrix.unsharded};
    Adam adam(list, kOptions);
    set_gradient(*device, *matrix.shard, 1, spec.first_row);
    adam.step(runtime);
    work(runtime, TrainingState{.parameters = list, .optimizer = &adam, .forward_scales = {}, .backward_scales = {}});
  };
  std::vector<float> value;
  run_ranks("in_process", {.ranks = 1}, [&](ProcessGroup& group) {
    train(group, "bf16", [&](Runtime& runtime, const TrainingState& state) {
      save_training_state(runtime, path_of(plain), state, &group);
      value = runtime.device.read(state.parameters[0]->local->value);
    });
  });
  run_ranks("in_process", {.ranks = 2}, [&](ProcessGroup& group) {
    train(group, "mxfp8", [&](Runtime& runtime, const TrainingState& state) {
      Device& device = runtime.device;
      load_training_state(runtime, path_of(plain), state, &group);
      const Tensor& master = state.optimizer->state().front().master;
      const std::ptrdiff_t elems = master.numel(), first = group.rank() * elems;
      EXPECT_EQ(device.read(master), std::vector<float>(value.begin() + first, value.begin() + first + elems));
      const Parameter& shard = *state.parameters[0]->local;
      EXPECT_EQ(all_bytes(device, shard.quantized), all_bytes(device, quantize(device, master, *shard.quantizer)));
      save_training_state(runtime, path_of(cast_down), state, &group);
    });
  });
  run_ranks("in_process", {.ranks = 1}, [&](ProcessGroup& group) {
    train(group, "bf16", [&](Runtime& runtime, const TrainingState& state) {
      fill(runtime.device, state.parameters[0]->local->value, 0.0f);
      load_training_state(runtime, path_of(cast_down), state, &group);
      EXPECT_EQ(runtime.device.read(state.parameters[0]->local->value), value);
    });
  });
}

// Each shard's moments get a scale of their own, which costs half a unit in the last place under the new shard's scale.
TEST(ScaledMoments, AreRoundedOnceMoreUnderAnotherCut) {
  for (const auto& [dtype, unit] : {std::pair{DType::kF16, 0x1p-11}, {DType::kE4M3, 0x1p-4}}) {
    const AdamOptions options{.master = MasterWeights::kF32, .exp_avg = dtype};
    const TemporaryDirectory folder;
    const Everything saved = on_ranks("current", kThree, options, [&](ProcessGroup& group, Rank& rank) {
      rank.run(1, 3);
      save_training_state(rank.runtime, path_of(folder), rank.state(), &group);
    });
    const Everything loaded = on_ranks("current", kUneven, options, [&](ProcessGroup& group, Rank& rank) {
      load_training_state(rank.runtime, path_of(folder), rank.state(), &group);
    });
    float largest = 0.0f;
    for (const float x : saved.exp_avg) largest = std::max(largest, std::fabs(x));
    const double smallest = dtype == DType::kF16 ? 0x1p-25 / 32752.0 : 0x1p-10 / 448.0;
    EXPECT_TRUE(reference::all_close(loaded.exp_avg, saved.exp_avg,
                                     {.atol = 1.01 * smallest * double{largest}, .rtol = 1.01 * unit}));
    EXPECT_EQ(loaded.master, saved.master);
  }
}

}  // namespace
}  // namespace fp8lab

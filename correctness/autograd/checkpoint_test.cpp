// One checkpointed region: what it keeps, when it recomputes, which scales the recomputation uses, what it refuses.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "autograd/activation_checkpoint.h"
#include "autograd/tape_fixture.h"
#include "core/check.h"
#include "nn/cores/role_scales.h"
#include "nn/layers/layernorm_linear.h"
#include "reference/compare.h"

namespace fp8lab {
namespace {

using autograd_test::probe;
using autograd_test::SavingNode;
using autograd_test::Tape;
using support::LeafNode;

class CheckpointTest : public ::testing::Test {
 protected:
  using Forward = CheckpointFrame::Forward;

  Variable input() { return {tape_.tensor({1, 2}, DType::kF32, HolderKind::kInFlight), leaf_}; }
  /// A node that saves `elements` floats of `value`; every forward makes a new one.
  Variable saving(const std::string& name, const Variable& x, std::int64_t elements, float value = 1.0f) {
    const auto node = std::make_shared<SavingNode>(runtime_, name, std::vector<std::shared_ptr<Node>>{x.producer});
    node->save("t", tape_.tensor({1, elements}, DType::kF32, HolderKind::kWorkspace, {}, value));
    node->on_backward = [this](Restored& saved) { restored_.push_back(tape_.device->read(saved.tensor(0)).front()); };
    return {x.value, node};
  }

  Tape tape_;
  Runtime& runtime_ = tape_.runtime;
  std::shared_ptr<LeafNode> leaf_ = std::make_shared<LeafNode>(runtime_);
  std::vector<float> restored_;
};

TEST_F(CheckpointTest, RegionKeepsOnlyItsInputUntilItsLastNodeHasRun) {
  int forwards = 0;
  std::vector<std::int64_t> slots, inputs;
  const auto watch = [&](const Tensor&) {
    slots.push_back(tape_.bytes_of("saved slot of first") + tape_.bytes_of("saved slot of second"));
    inputs.push_back(tape_.bytes_of("saved slot of checkpoint region: input"));
  };
  const Forward forward = [&](const Variable& in) {
    ++forwards;
    const Variable first = saving("first", in, 10, 1.0f);
    return saving("second", probe(runtime_, first, watch), 100, 2.0f);
  };
  Variable loss;
  {
    const Variable y = checkpoint(runtime_, "region", forward, probe(runtime_, input(), watch));
    loss = sum_loss(runtime_, probe(runtime_, y, watch));
  }
  EXPECT_EQ(forwards, 1);
  EXPECT_EQ(tape_.bytes(HolderKind::kSavedSlot), 8) << "only the input, which no other object holds";
  EXPECT_EQ(tape_.bytes_of("saved slot of checkpoint region: input"), 8);

  run_backward(runtime_, loss);
  EXPECT_EQ(forwards, 2) << "one recomputation serves all nodes";
  EXPECT_EQ(restored_, (std::vector<float>{2.0f, 1.0f}));
  // Bytes in saved slots before the region's backward, between its nodes (the slots of `second` are freed, the slots of
  // `first` are recomputed) and after it.
  EXPECT_EQ(slots, (std::vector<std::int64_t>{0, 40, 0}));
  EXPECT_EQ(inputs, (std::vector<std::int64_t>{8, 8, 0}));
  EXPECT_EQ(tape_.device->ledger().retained_bytes(), 8) << "the gradient that the leaf keeps";
}

TEST_F(CheckpointTest, RegionThatSavesNothingIsNotRecomputed) {
  int forwards = 0;
  const Forward forward = [&](const Variable& in) {
    ++forwards;
    return add(runtime_, "sum", in, in);
  };
  run_backward(runtime_, sum_loss(runtime_, checkpoint(runtime_, "region", forward, input())));
  EXPECT_EQ(forwards, 1);
  EXPECT_EQ(tape_.device->read(leaf_->gradient()), (std::vector<float>{2.0f, 2.0f}));
}

TEST_F(CheckpointTest, RecomputationThatSavesOtherTensorsIsAnError) {
  for (const int second : {0, 2}) {
    bool recomputing = false;
    const Forward forward = [&](const Variable& in) {
      Variable value = in;
      for (int i = 0; i < (recomputing ? second : 1); ++i) value = saving("node", value, 1);
      return value;
    };
    const Variable loss = sum_loss(runtime_, checkpoint(runtime_, "region", forward, input()));
    recomputing = true;
    EXPECT_THROW(run_backward(runtime_, loss), Error) << second << " tensors instead of 1";
    EXPECT_EQ(runtime_.mode, Runtime::Mode::kPlain);
  }
}

TEST_F(CheckpointTest, NestedRegionIsAnErrorAndRestoresTheMode) {
  const Forward inner = [](const Variable& in) { return in; };
  const Forward outer = [&](const Variable& in) { return checkpoint(runtime_, "inner", inner, in); };
  EXPECT_THROW(checkpoint(runtime_, "outer", outer, input()), Error);
  EXPECT_EQ(runtime_.mode, Runtime::Mode::kPlain);
  EXPECT_EQ(runtime_.frame, nullptr);
}

TEST_F(CheckpointTest, RecomputationUsesTheStashedScaleAndRecordsNoAmax) {
  const Recipe recipe = make_recipe("delayed");
  Registry registry;
  Build build{.runtime = runtime_, .recipe = recipe, .registry = registry};
  RoleScales scales(build, "module", {recipe.activation}, recipe.delayed, true);
  struct Use {
    float scale;
    bool records;
    bool operator==(const Use&) const = default;
  };
  std::vector<Use> uses;
  const Forward forward = [&](const Variable& in) {
    scales.begin_forward(runtime_);
    const Quantizer inputs = scales.quantizer(0, {}, 0);
    const AttentionRole role = scales.kernel_role(0);
    EXPECT_EQ(*role.scale, tape_.device->read(inputs.scale).front());
    EXPECT_EQ(role.amax != nullptr, static_cast<bool>(inputs.amax));
    uses.push_back({*role.scale, role.amax != nullptr});
    scales.end_forward();
    return saving("node", in, 1);
  };
  {
    const Variable loss = sum_loss(runtime_, checkpoint(runtime_, "region", forward, input()));
    tape_.device->write(scales.delayed()->scale(0), std::vector<float>{5.0f});  // as an update of the history would
    EXPECT_EQ(tape_.bytes_of("recipe state of checkpoint region: stashed scales"), 4);
    run_backward(runtime_, loss);
    EXPECT_EQ(tape_.bytes_of("recipe state of checkpoint region: stashed scales"), 0);
  }
  forward(input());
  EXPECT_EQ(uses, (std::vector<Use>{{1.0f, true}, {1.0f, false}, {5.0f, true}}));
}

// With kKeepFromForward a module's shells keep their buffers from forward on, through a checkpointed region too.
TEST_F(CheckpointTest, ShellThatKeepsItsBuffersFreesNoneOfThem) {
  for (const ShellPolicy policy :
       {ShellPolicy::kMoveOut, ShellPolicy::kRestoreAndKeep, ShellPolicy::kKeepFromForward}) {
    Behaviors behaviors;
    behaviors.module_shells = policy;
    Tape tape(behaviors);
    const Recipe recipe = make_recipe("current");
    Registry registry;
    Build build{.runtime = tape.runtime, .recipe = recipe, .registry = registry};
    LayerNormLinear module(build, "layers[0]", NormKind::kRmsNorm, {.in = 16, .out = 32, .bias = false});
    const Variable x{tape.tensor({16, 16}, DType::kBF16, HolderKind::kInput), nullptr};
    Variable loss = sum_loss(
        tape.runtime,
        checkpoint(tape.runtime, "layers[0]", [&](const Variable& in) { return module.forward(tape.runtime, in); }, x));
    // The weight in both orientations, 2 x 16 x 32 bytes, and its scale.
    EXPECT_EQ(tape.bytes_of("context of layers[0]: weight"), policy == ShellPolicy::kKeepFromForward ? 1028 : 0);
    run_backward(tape.runtime, loss);
    EXPECT_EQ(tape.bytes_of("context of layers[0]: weight"), policy == ShellPolicy::kMoveOut ? 0 : 1028)
        << "what is recomputed for the first forward's node stays with that node";
    loss = {};
    EXPECT_EQ(tape.bytes_of("context of layers[0]: weight"), 0);
  }
}

}  // namespace
}  // namespace fp8lab

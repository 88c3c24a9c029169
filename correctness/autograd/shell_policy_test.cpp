// What each shell policy holds, in bytes computed by hand: at the end of forward, after each node's backward, with the
// loss alive, and once the loss is gone.

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tape_fixture.h"
#include "nn/cores/attention_core.h"
#include "nn/layers/layernorm_linear.h"

namespace fp8lab {
namespace {

using autograd_test::probe;
using autograd_test::Tape;

/// Bytes held for backward: in saved slots, which the engine empties, and in contexts, which it does not empty.
struct Held {
  std::int64_t slots = 0;
  std::int64_t context = 0;
  friend bool operator==(const Held&, const Held&) = default;
};
std::ostream& operator<<(std::ostream& out, const Held& held) {
  return out << held.slots << " B in slots, " << held.context << " B in contexts";
}

/// Bytes held at five moments of a module that runs between two probes and a sum. Only the module saves anything.
struct Moments {
  Held end_of_forward;
  Held before_its_backward;  ///< after the loss's node has run
  Held after_its_backward;
  Held end_of_backward;
  Held loss_dropped;
  std::string retained;  ///< at the end of backward: each holder, and since which phase it holds
  HolderBytes retained_by_holder;
};

Moments run(Tape& tape, Module& module, Shape input) {
  Runtime& runtime = tape.runtime;
  const auto held = [&] { return Held{tape.bytes(HolderKind::kSavedSlot), tape.bytes(HolderKind::kContext)}; };
  Moments moments;
  tape.phase(PhaseKind::kForward);
  Variable x{tape.tensor(input, DType::kBF16, HolderKind::kInput, "x"), nullptr};
  Variable loss;
  {
    const Variable before = probe(runtime, x, [&](const Tensor&) { moments.after_its_backward = held(); });
    const Variable y = module.forward(runtime, before);
    loss = sum_loss(runtime, probe(runtime, y, [&](const Tensor&) { moments.before_its_backward = held(); }));
  }
  moments.end_of_forward = held();
  tape.phase(PhaseKind::kBackward);
  run_backward(runtime, loss);
  moments.end_of_backward = held();
  moments.retained = tape.device->memory().describe_retained();
  moments.retained_by_holder = tape.device->ledger().retained_by_holder();
  x = {};
  loss = {};
  moments.loss_dropped = held();
  return moments;
}

struct Expected {
  const char* recipe;
  const char* arch;
  std::int64_t saved;    ///< all that the module saves, without its input
  std::int64_t storage;  ///< the part of it that goes through a shell
};
void PrintTo(const Expected& expected, std::ostream* out) { *out << expected.recipe << " on " << expected.arch; }

void expect_policies(const Expected& expected, ShellPolicy policy, const Moments& moments) {
  const Held all_in_slots{expected.saved, 0}, nothing{0, 0};
  const Held shells_full{expected.saved - expected.storage, expected.storage}, kept{0, expected.storage};
  const bool from_forward = policy == ShellPolicy::kKeepFromForward;
  const bool leaks = policy != ShellPolicy::kMoveOut;
  EXPECT_EQ(moments.end_of_forward, from_forward ? shells_full : all_in_slots);
  EXPECT_EQ(moments.before_its_backward, from_forward ? shells_full : all_in_slots);
  EXPECT_EQ(moments.after_its_backward, leaks ? kept : nothing);
  EXPECT_EQ(moments.end_of_backward, leaks ? kept : nothing);
  EXPECT_EQ(moments.loss_dropped, nothing);
}

constexpr ShellPolicy kPolicies[] = {ShellPolicy::kMoveOut, ShellPolicy::kRestoreAndKeep,
                                     ShellPolicy::kKeepFromForward};

class LayerNormLinearShells : public ::testing::TestWithParam<Expected> {};

TEST_P(LayerNormLinearShells, HoldTheBytesOfTheirPolicy) {
  for (const ShellPolicy policy : kPolicies) {
    Behaviors behaviors;
    behaviors.module_shells = policy;
    Tape tape(behaviors, GetParam().arch);
    const Recipe recipe = make_recipe(GetParam().recipe);
    Registry registry;
    Build build{.runtime = tape.runtime, .recipe = recipe, .registry = registry};
    LayerNormLinear module(build, "layers[0]", NormKind::kLayerNorm, {.in = 128, .out = 256});
    const Moments moments = run(tape, module, {128, 128});
    expect_policies(GetParam(), policy, moments);
    const HolderBytes leak{{"context of layers[0]: weight", GetParam().storage}};
    EXPECT_EQ(moments.retained_by_holder,
              policy == ShellPolicy::kMoveOut || GetParam().storage == 0 ? HolderBytes{} : leak);
  }
}

// 128 tokens, 128 -> 256, bf16. Every recipe saves mean and rstd, 512 B each. norm(x) has 16384 elements, W 32768.
//   bf16       norm(x) in 16 bits: 32768; W is the parameter itself
//   hopper     norm(x) transposed: 16384 + 4; W in both orientations: 65536 + 4
//   blackwell  norm(x) as it is: 16384 + 4; W as it is: 32768 + 4
//   mxfp8      norm(x) column-wise: 16384 + 128 x 4 scales; W in both orientations: 65536 + 256 x 4 + 128 x 8
//   block      norm(x) column-wise: 16384 + 1 x 128 floats; W in both orientations: 65536 + 2 x 4 + 1 x 4 floats
INSTANTIATE_TEST_SUITE_P(
    Recipes, LayerNormLinearShells,
    ::testing::Values(Expected{"bf16", "hopper", 33792, 0}, Expected{"delayed", "hopper", 82952, 65540},
                      Expected{"current", "hopper", 82952, 65540}, Expected{"delayed", "blackwell", 50184, 32772},
                      Expected{"mxfp8", "hopper", 85504, 67584}, Expected{"mxfp8", "blackwell", 85504, 67584},
                      Expected{"block", "hopper", 83504, 65584}));

Moments run_attention(const char* recipe_name, const char* arch, ShellPolicy policy) {
  Behaviors behaviors;
  behaviors.attention_shells = policy;
  Tape tape(behaviors, arch);
  const Recipe recipe = make_recipe(recipe_name);
  Registry registry;
  Build build{.runtime = tape.runtime, .recipe = recipe, .registry = registry};
  LayerConfig config;
  config.hidden = 32;
  config.heads = 2;
  config.kv_heads = 1;
  config.seq = 16;
  config.batch = 2;
  config.fp8_attention = true;
  AttentionCore module(build, "layers[0].attention", config);
  return run(tape, module, {32, 64});
}

class AttentionShells : public ::testing::TestWithParam<Expected> {};

TEST_P(AttentionShells, HoldTheBytesOfTheirPolicy) {
  for (const ShellPolicy policy : kPolicies) {
    const Moments moments = run_attention(GetParam().recipe, GetParam().arch, policy);
    expect_policies(GetParam(), policy, moments);
    const HolderBytes leak{{"context of layers[0].attention: k, q, v", GetParam().storage}};
    EXPECT_EQ(moments.retained_by_holder,
              policy == ShellPolicy::kMoveOut || GetParam().storage == 0 ? HolderBytes{} : leak);
  }
}

// 16 positions of 2 sequences, 2 heads of 16 over 1 key/value head. Every recipe saves lse, 4 x 16 floats = 256.
//   in 8 bits   q 1024, k and v 512 each, their one scale 4: 2052, through shells only under delayed scaling; the
//   scale
//               of S 4
//   delayed     O in 8 bits: 1024 + 4
//   current     O in 16 bits: 2048
//   16 bits     the packed projection is the input here; O 2048
INSTANTIATE_TEST_SUITE_P(Recipes, AttentionShells,
                         ::testing::Values(Expected{"delayed", "hopper", 3340, 2052},
                                           Expected{"delayed", "blackwell", 3340, 2052},
                                           Expected{"current", "hopper", 4360, 0}, Expected{"bf16", "hopper", 2304, 0},
                                           Expected{"mxfp8", "hopper", 2304, 0},
                                           Expected{"block", "blackwell", 2304, 0}));

TEST(AttentionRetained, DescriptionNamesTheHolderAndThePhase) {
  EXPECT_EQ(run_attention("delayed", "hopper", ShellPolicy::kMoveOut).retained, "");
  EXPECT_EQ(run_attention("delayed", "hopper", ShellPolicy::kRestoreAndKeep).retained,
            "context of layers[0].attention: q  4 B since backward of step 0\n"
            "context of layers[0].attention: q  1024 B since backward of step 0\n"
            "context of layers[0].attention: k  512 B since backward of step 0\n"
            "context of layers[0].attention: v  512 B since backward of step 0\n");
  EXPECT_EQ(run_attention("delayed", "hopper", ShellPolicy::kKeepFromForward).retained,
            "context of layers[0].attention: q  4 B since forward of step 0\n"
            "context of layers[0].attention: q  1024 B since forward of step 0\n"
            "context of layers[0].attention: k  512 B since forward of step 0\n"
            "context of layers[0].attention: v  512 B since forward of step 0\n");
}

}  // namespace
}  // namespace fp8lab

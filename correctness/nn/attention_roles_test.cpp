// FP8 attention as a module: the format and scale to which each operand is cast, and the amaxes that leave the module.
// A reference makes the same casts in double; a role that is skipped or uses another's scale shows as noise.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "nn/cores/attention_core.h"
#include "nn/role_reference.h"
#include "ops/attention.h"
#include "reference/attention_reference.h"
#include "reference/compare.h"
#include "reference/test_data.h"
#include "support/dense.h"
#include "support/layer_run.h"

namespace fp8lab {
namespace {

using namespace nn_test;

/// The scales in use in one step; an absent scale leaves its role in 16 bits.
struct AttentionScales {
  double qkv = 1.0;
  double s = 1.0;
  std::optional<double> o;
  double grad_o = 1.0;
  double grad_p = 1.0;
  std::optional<double> grad_qkv;
};

/// The amaxes of a step, from which the scales of the next follow.
struct Amaxes {
  double qkv, s, o, grad_o, grad_p, grad_qkv;
};

struct Step {
  Doubles o;
  Doubles grad_qkv;
  Amaxes amaxes;
};

constexpr std::int64_t kSeq = 24, kBatch = 2, kHeads = 4, kKvHeads = 2, kDim = 16;
constexpr std::int64_t kAttentionTokens = kSeq * kBatch, kQueries = kHeads * kDim, kKeys = kKvHeads * kDim;
constexpr std::int64_t kPacked = kQueries + 2 * kKeys;

Doubles part(const Doubles& packed, std::int64_t begin, std::int64_t count) {
  Doubles values;
  for (std::int64_t i = 0; i < kAttentionTokens; ++i)
    for (std::int64_t j = begin; j < begin + count; ++j)
      values.push_back(packed[static_cast<std::size_t>(i * kPacked + j)]);
  return values;
}

Doubles pack(const Doubles& q, const Doubles& k, const Doubles& v) {
  Doubles packed;
  for (std::int64_t i = 0; i < kAttentionTokens; ++i) {
    packed.insert(packed.end(), q.begin() + i * kQueries, q.begin() + (i + 1) * kQueries);
    packed.insert(packed.end(), k.begin() + i * kKeys, k.begin() + (i + 1) * kKeys);
    packed.insert(packed.end(), v.begin() + i * kKeys, v.begin() + (i + 1) * kKeys);
  }
  return packed;
}

Step reference_step(const Doubles& qkv, const Doubles& grad_o, const AttentionScales& scales) {
  reference::AttentionProblem problem;
  problem.seq = kSeq;
  problem.batch = kBatch;
  problem.heads = kHeads;
  problem.kv_heads = kKvHeads;
  problem.head_dim = kDim;
  problem.softmax_scale = 1.0 / std::sqrt(static_cast<double>(kDim));
  const Doubles qkv8 = cast(qkv, kE4M3, scales.qkv);
  reference::AttentionInputsReference inputs;
  inputs.q = part(qkv8, 0, kQueries);
  inputs.k = part(qkv8, kQueries, kKeys);
  inputs.v = part(qkv8, kQueries + kKeys, kKeys);
  inputs.s = {&kE4M3, scales.s};
  const auto forward = attention_forward(problem, inputs);
  Step step;
  step.o = scales.o ? cast(forward.o.value, kE4M3, *scales.o) : forward.o.value;
  const Doubles grad_o8 = cast(grad_o, kE5M2, scales.grad_o);
  const auto backward = attention_backward(problem, inputs, step.o, grad_o8, {&kE5M2, scales.grad_p});
  const Doubles grad = pack(backward.grad_q.value, backward.grad_k.value, backward.grad_v.value);
  step.grad_qkv = scales.grad_qkv ? cast(grad, kE5M2, *scales.grad_qkv) : grad;
  step.amaxes = {amax_of(qkv),    forward.amax_s,       amax_of(forward.o.value),
                 amax_of(grad_o), backward.amax_grad_p, amax_of(grad)};
  return step;
}

class AttentionRoles : public ::testing::TestWithParam<const char*> {
 protected:
  AttentionRoles() {
    config_.hidden = kQueries;
    config_.heads = kHeads;
    config_.kv_heads = kKvHeads;
    config_.seq = kSeq;
    config_.batch = kBatch;
    config_.fp8_attention = true;
    core_.emplace(build_, "attention", config_);
  }

  Step step() {
    const auto leaf = std::make_shared<support::LeafNode>(runtime_);
    const Variable o = core_->forward(runtime_, {qkv_, leaf});
    update_scales(runtime_, registry_.forward_scales, nullptr);
    run_backward(runtime_, o, grad_o_);
    update_scales(runtime_, registry_.backward_scales, nullptr);
    return {support::read(*device_, o.value), support::read(*device_, leaf->gradient()), {}};
  }

  bool delayed() const { return std::string(GetParam()) == "delayed"; }
  /// AttentionScales come from the previous step if there is a history, otherwise from the step itself.
  AttentionScales scales_of(const Amaxes& own, const std::optional<Amaxes>& before) const {
    const auto scale = [&](double Amaxes::* amax, double max, bool history) {
      if (!history) return max / (own.*amax);
      return before ? max / ((*before).*amax) : 1.0;
    };
    AttentionScales scales;
    scales.qkv = scale(&Amaxes::qkv, kE4M3.max(), delayed());
    scales.s = scale(&Amaxes::s, kE4M3.max(), true);
    scales.grad_o = scale(&Amaxes::grad_o, kE5M2.max(), delayed());
    scales.grad_p = scale(&Amaxes::grad_p, kE5M2.max(), true);
    if (delayed()) scales.o = scale(&Amaxes::o, kE4M3.max(), true);
    if (delayed()) scales.grad_qkv = scale(&Amaxes::grad_qkv, kE5M2.max(), true);
    return scales;
  }

  Tensor values(std::int64_t cols, std::uint64_t seed, double deviation) {
    return support::make_tensor(*device_, {kAttentionTokens, cols}, DType::kF32,
                                reference::gaussian_values(kAttentionTokens * cols, seed, deviation));
  }

  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Runtime runtime_{.device = *device_, .behaviors = {}};
  Recipe recipe_ = make_recipe(GetParam());
  Registry registry_;
  Build build_{.runtime = runtime_, .recipe = recipe_, .registry = registry_, .dtype = DType::kF32};
  LayerConfig config_;
  std::optional<AttentionCore> core_;
  // Away from 1 and from each other, so that a scale in the wrong place gives a large error.
  Tensor qkv_ = values(kPacked, 1, 1.7);
  Tensor grad_o_ = values(kQueries, 2, 0.003);
};

// Two steps over the same data, so that the second has the first's amaxes. Values on a tie may be cast the other way by
// FP32: one in a few thousand, 50 dB below the signal. A cast too many, too few or under another scale costs as much as
// a cast: 31 dB in E4M3, 25 dB in E5M2.
TEST_P(AttentionRoles, AreCastUnderTheirOwnScales) {
  const Doubles qkv = support::read(*device_, qkv_), grad_o = support::read(*device_, grad_o_);
  const Amaxes own{.qkv = amax_of(qkv), .s = 0, .o = 0, .grad_o = amax_of(grad_o), .grad_p = 0, .grad_qkv = 0};
  std::optional<Amaxes> before;
  for (int number = 0; number < 2; ++number) {
    const Step expected = reference_step(qkv, grad_o, scales_of(own, before));
    const Step actual = step();
    EXPECT_GT(reference::sqnr_db(expected.o, actual.o), 45.0) << "step " << number;
    EXPECT_GT(reference::sqnr_db(expected.grad_qkv, actual.grad_qkv), 45.0) << "step " << number;
    before = expected.amaxes;
  }
}

// The threshold refuses a result in which any role has a scale smaller by a third.
TEST_P(AttentionRoles, WrongScaleOfAnyRoleIsRefused) {
  const Doubles qkv = support::read(*device_, qkv_), grad_o = support::read(*device_, grad_o_);
  const Amaxes own{.qkv = amax_of(qkv), .s = 0, .o = 0, .grad_o = amax_of(grad_o), .grad_p = 0, .grad_qkv = 0};
  const Amaxes before = reference_step(qkv, grad_o, scales_of(own, {})).amaxes;
  step();
  const Step actual = step();
  const auto sees = [&](auto&& mutate) {
    AttentionScales scales = scales_of(own, before);
    mutate(scales);
    const Step mutated = reference_step(qkv, grad_o, scales);
    return reference::sqnr_db(mutated.o, actual.o) < 45.0 ||
           reference::sqnr_db(mutated.grad_qkv, actual.grad_qkv) < 45.0;
  };
  EXPECT_FALSE(sees([](AttentionScales&) {}));
  EXPECT_TRUE(sees([](AttentionScales& scales) { scales.qkv *= 0.67; }));
  EXPECT_TRUE(sees([](AttentionScales& scales) { scales.s *= 0.67; }));
  EXPECT_TRUE(sees([](AttentionScales& scales) { scales.grad_o *= 0.67; }));
  EXPECT_TRUE(sees([](AttentionScales& scales) { scales.grad_p *= 0.67; }));
  EXPECT_TRUE(sees([](AttentionScales& scales) { scales.o = scales.o ? 0.67 * *scales.o : 1.0; }));
  EXPECT_TRUE(sees([](AttentionScales& scales) { scales.grad_qkv = scales.grad_qkv ? 0.67 * *scales.grad_qkv : 1e6; }));
}

// With a backward in 16 bits the gradient belongs to the tensors which forward was given and returned, under the
// logarithms of forward's sums over eight bits: bit for bit what the plain kernel computes of them. Backward casts
// nothing, so that it has no scales.
TEST_P(AttentionRoles, BackwardIn16BitsReadsWhatForwardWasGivenAndReturned) {
  registry_ = {};
  config_.fp8_attention_backward = false;
  core_.emplace(build_, "attention", config_);
  EXPECT_TRUE(registry_.backward_scales.empty());
  EXPECT_EQ(registry_.forward_scales.size(), 1u);

  Quantizer cast{.format = recipe_.attention->qkv};
  const DelayedScales& delayed = *registry_.forward_scales[0]->delayed();
  const Tensor one = delayed.scale(0);  // in the first step every scale is 1
  if (cast.format.amax_source == AmaxSource::kHistory) cast.scale = one;
  const AttentionCore::Split parts = core_->split(qkv_);
  const std::vector<Tensor> inputs{parts.q, parts.k, parts.v};
  const std::vector<QuantizedTensor> qkv8 = quantize_together(*device_, inputs, cast);
  const AttentionShape shape{.seq = kSeq,
                             .batch = kBatch,
                             .heads = kHeads,
                             .kv_heads = kKvHeads,
                             .head_dim = kDim,
                             .softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kDim)))};
  const AttentionOutputs forward =
      attention_forward(*device_, {.shape = shape,
                                   .q = qkv8[0].rowwise_operand(),
                                   .k = qkv8[1].rowwise_operand(),
                                   .v = qkv8[2].rowwise_operand(),
                                   .s = {.dtype = DType::kE4M3, .scale = one.data<float>()},
                                   .out_dtype = DType::kF32});
  const auto leaf = std::make_shared<support::LeafNode>(runtime_);
  const Variable o = core_->forward(runtime_, {qkv_, leaf});
  const Tensor expected = device_->allocate(qkv_.spec(), 0);
  const AttentionCore::Split grads = core_->split(expected);
  attention_backward(*device_, {.shape = shape,
                                .q = parts.q.operand(),
                                .k = parts.k.operand(),
                                .v = parts.v.operand(),
                                .o = o.value.operand(),
                                .grad_o = grad_o_.operand(),
                                .lse = forward.lse,
                                .s = {},
                                .grad_p = {},
                                .out = {grads.q, grads.k, grads.v}});
  run_backward(runtime_, o, grad_o_);
  EXPECT_TRUE(reference::bitwise_equal(support::read(*device_, leaf->gradient()), support::read(*device_, expected)));
}

INSTANTIATE_TEST_SUITE_P(Recipes, AttentionRoles, ::testing::Values("delayed", "current"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace fp8lab

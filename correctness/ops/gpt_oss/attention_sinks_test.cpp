// Attention sinks: a logit of each head that joins the sum of the softmax and has no value.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/attention.h"
#include "reference/test_data.h"
#include "support/dense.h"
#include "support/error_of.h"

namespace fp8lab {
namespace {

using support::make_tensor;
using support::read;
using Numbers = std::vector<double>;

constexpr std::int64_t kSeq = 70, kBatch = 2, kHeads = 4, kKvHeads = 2, kDim = 8, kRows = kSeq * kBatch;
constexpr std::size_t kGroup = kHeads / kKvHeads;

struct Inputs {
  Numbers q, k, v, sinks;
};

/// The first key that a query sees.
std::size_t first_key(const AttentionShape& shape, std::size_t query) {
  const auto window = static_cast<std::size_t>(shape.window);
  return window == 0 || query < window ? 0 : query + 1 - window;
}

/// O by the definition: the rows of softmax((logits, sink)) without the sink's entry, times V.
Numbers defined_output(const AttentionShape& shape, const Inputs& in) {
  const auto at = [](std::size_t position, std::size_t sequence) { return position * kBatch + sequence; };
  Numbers o(static_cast<std::size_t>(kRows * kHeads * kDim));
  for (std::size_t b = 0; b < kBatch; ++b)
    for (std::size_t h = 0; h < kHeads; ++h)
      for (std::size_t i = 0; i < kSeq; ++i) {
        Numbers shares;
        double sum = std::exp(in.sinks[h]);
        for (std::size_t j = first_key(shape, i); j <= i; ++j) {
          double logit = 0.0;
          for (std::size_t d = 0; d < kDim; ++d)
            logit += in.q[(at(i, b) * kHeads + h) * kDim + d] * in.k[(at(j, b) * kKvHeads + h / kGroup) * kDim + d];
          shares.push_back(std::exp(logit * double{shape.softmax_scale}));
          sum += shares.back();
        }
        for (std::size_t j = first_key(shape, i); j <= i; ++j)
          for (std::size_t d = 0; d < kDim; ++d)
            o[(at(i, b) * kHeads + h) * kDim + d] +=
                shares[j - first_key(shape, i)] / sum * in.v[(at(j, b) * kKvHeads + h / kGroup) * kDim + d];
      }
  return o;
}

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

class AttentionSinksTest : public ::testing::Test {
 protected:
  HolderId anyone() { return support::anyone(*device_); }
  Tensor random(const Shape& shape, std::uint64_t seed, double deviation = 1.0) {
    return make_tensor(*device_, shape, DType::kF32, reference::gaussian_values(shape.numel(), seed, deviation));
  }
  static AttentionShape shape_of(std::int64_t window) {
    return {.seq = kSeq,
            .batch = kBatch,
            .heads = kHeads,
            .kv_heads = kKvHeads,
            .head_dim = kDim,
            .causal = true,
            .window = window,
            .softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kDim)))};
  }
  AttentionOutputs forward(const AttentionShape& shape, const Tensor& sinks) {
    return attention_forward(*device_, {.shape = shape,
                                        .q = q_.operand(),
                                        .k = k_.operand(),
                                        .v = v_.operand(),
                                        .s = {},
                                        .sinks = sinks,
                                        .out_dtype = DType::kF32,
                                        .o_holder = anyone(),
                                        .lse_holder = anyone()});
  }
  AttentionGradients backward(const AttentionShape& shape, const AttentionOutputs& out, const Tensor& grad_o) {
    AttentionGradients grads{.q = random(q_.shape(), 90),
                             .k = random(k_.shape(), 91),
                             .v = random(v_.shape(), 92),
                             .sinks = random(sinks_.shape(), 93)};
    attention_backward(*device_, {.shape = shape,
                                  .q = q_.operand(),
                                  .k = k_.operand(),
                                  .v = v_.operand(),
                                  .o = out.o.operand(),
                                  .grad_o = grad_o.operand(),
                                  .lse = out.lse,
                                  .s = {},
                                  .grad_p = {},
                                  .sinks = sinks_,
                                  .out = grads});
    return grads;
  }
  Inputs inputs() { return {read(*device_, q_), read(*device_, k_), read(*device_, v_), read(*device_, sinks_)}; }

  std::unique_ptr<Device> device_ = support::open_poisoned_device("hopper");
  Tensor q_ = random({kRows, kHeads* kDim}, 1), k_ = random({kRows, kKvHeads* kDim}, 2),
         v_ = random({kRows, kKvHeads* kDim}, 3), sinks_ = random({kHeads}, 4, 2.0);
};

// Sums of at most 70 terms of about 1 in FP32: errors are below 70 roundings, 1e-5.
TEST_F(AttentionSinksTest, SinksJoinTheSumOfTheSoftmax_InEveryTileAndWindow) {
  for (const std::int64_t window : {0, 1, 5, 66}) {
    const AttentionShape shape = shape_of(window);
    const Numbers expected = defined_output(shape, inputs()), o = read(*device_, forward(shape, sinks_).o);
    for (std::size_t i = 0; i < o.size(); ++i) ASSERT_NEAR(o[i], expected[i], 1e-5) << window << ' ' << i;
  }
}

TEST_F(AttentionSinksTest, ASinkFarBelowTheLogitsHasNoShare_AndOneFarAboveTakesAll) {
  const AttentionShape shape = shape_of(0);
  const auto with = [&](float sink) {
    return read(*device_, forward(shape, make_tensor(*device_, {kHeads}, DType::kF32, std::vector<float>(4, sink))).o);
  };
  EXPECT_EQ(with(-1e4f), read(*device_, forward(shape, {}).o));
  for (const double value : with(1e4f)) EXPECT_EQ(value, 0.0);
}

// Central differences of sum(grad_o * O) in double: truncation is about the square of the distance, 1e-8, and
// the gradients sum at most 140 rows of FP32 products.
TEST_F(AttentionSinksTest, GradientsAreDifferencesOfTheDefinition) {
  for (const std::int64_t window : {0, 5}) {
    const AttentionShape shape = shape_of(window);
    const Tensor grad_o = random(q_.shape(), 5);
    const AttentionGradients grads = backward(shape, forward(shape, sinks_), grad_o);
    const Numbers of_o = read(*device_, grad_o);
    const auto check = [&](const Tensor& gradient, Numbers Inputs::* member, std::size_t step) {
      const Numbers actual = read(*device_, gradient);
      for (std::size_t i = 0; i < actual.size(); i += step) {
        constexpr double kDistance = 1e-4;
        Inputs above = inputs(), below = above;
        (above.*member)[i] += kDistance;
        (below.*member)[i] -= kDistance;
        const double slope =
            (dot(defined_output(shape, above), of_o) - dot(defined_output(shape, below), of_o)) / (2.0 * kDistance);
        EXPECT_NEAR(actual[i], slope, 1e-4) << window << ' ' << i;
      }
    };
    check(grads.sinks, &Inputs::sinks, 1);
    check(grads.q, &Inputs::q, 251);
    check(grads.k, &Inputs::k, 251);
    check(grads.v, &Inputs::v, 251);
  }
}

TEST_F(AttentionSinksTest, SinksOfOtherHeads_AndSinksWithoutTheirGradient_AreRefused) {
  const AttentionShape shape = shape_of(0);
  EXPECT_NE(support::error_of([&] { forward(shape, random({3}, 6)); }).find("one for each head"), std::string::npos);
  const AttentionOutputs out = forward(shape, sinks_);
  EXPECT_NE(support::error_of([&] {
              attention_backward(*device_,
                                 {.shape = shape,
                                  .q = q_.operand(),
                                  .k = k_.operand(),
                                  .v = v_.operand(),
                                  .o = out.o.operand(),
                                  .grad_o = q_.operand(),
                                  .lse = out.lse,
                                  .s = {},
                                  .grad_p = {},
                                  .sinks = sinks_,
                                  .out = {random(q_.shape(), 7), random(k_.shape(), 8), random(v_.shape(), 9)}});
            }).find("sinks and their gradient come together"),
            std::string::npos);
}

}  // namespace
}  // namespace fp8lab

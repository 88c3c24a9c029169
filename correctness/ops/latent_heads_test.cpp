// Multi-head latent attention: how its products' results become Q, K and V, and attention over values that are narrower
// or wider than keys.

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
using Values = std::vector<double>;

constexpr LatentHeads kHeads{.batch = 2, .heads = 3, .head_dim = 5, .rope_dim = 4, .value_dim = 7};
constexpr std::int64_t kTokens = 6, kKey = 9, kPacked = 3 * (2 * kKey + 7);

class LatentHeadsTest : public ::testing::Test {
 protected:
  HolderId anyone() { return support::anyone(*device_); }
  Tensor random(const Shape& shape, std::uint64_t seed) {
    return make_tensor(*device_, shape, DType::kF32, reference::gaussian_values(shape.numel(), seed));
  }
  LatentHeadParts parts() {
    return {.q = random({kTokens, 27}, 1), .kv = random({kTokens, 36}, 2), .k_rope = random({kTokens, 4}, 3)};
  }
  Values values(const Tensor& tensor) { return read(*device_, tensor); }
  std::unique_ptr<Device> device_ = support::open_poisoned_device("hopper");
};

double product_of(const Values& a, const Values& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

TEST_F(LatentHeadsTest, EveryColumnHasItsPlace_AndOnlyTheLastOfAHeadAreRotated) {
  const LatentHeadParts from = parts();
  const Values packed = values(latent_heads(*device_, kHeads, from, anyone()));
  const Values q = values(from.q), kv = values(from.kv), rope = values(from.k_rope);
  const auto rotated = [](const double* x, std::size_t position, std::size_t column) {
    const std::size_t pair = column % 2;
    const double angle = static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(pair) / 2.0);
    return column < 2 ? x[pair] * std::cos(angle) - x[2 + pair] * std::sin(angle)
                      : x[2 + pair] * std::cos(angle) + x[pair] * std::sin(angle);
  };
  for (std::size_t t = 0; t < 6; ++t)
    for (std::size_t h = 0; h < 3; ++h) {
      const double *const row = &packed[t * 75], *const head_of_q = &q[t * 27 + h * 9],
                          *const head = &kv[t * 36 + h * 12];
      for (std::size_t d = 0; d < 5; ++d) {
        EXPECT_EQ(row[h * 9 + d], head_of_q[d]);
        EXPECT_EQ(row[27 + h * 9 + d], head[d]);
      }
      for (std::size_t d = 0; d < 4; ++d) {
        EXPECT_NEAR(row[h * 9 + 5 + d], rotated(head_of_q + 5, t / 2, d), 1e-5);
        EXPECT_NEAR(row[27 + h * 9 + 5 + d], rotated(&rope[t * 4], t / 2, d), 1e-5);
      }
      for (std::size_t d = 0; d < 7; ++d) EXPECT_EQ(row[54 + h * 7 + d], head[5 + d]);
    }
}

// The map is linear, so its gradient is its transpose.
TEST_F(LatentHeadsTest, TheGradientIsTheTransposedMap) {
  const LatentHeadParts from = parts();
  const Tensor grad = random({kTokens, kPacked}, 4);
  const double value = product_of(values(latent_heads(*device_, kHeads, from, anyone())), values(grad));
  const LatentHeadParts back = latent_heads_backward(*device_, kHeads, grad, anyone());
  const double of_parts = product_of(values(from.q), values(back.q)) + product_of(values(from.kv), values(back.kv)) +
                          product_of(values(from.k_rope), values(back.k_rope));
  ASSERT_GT(std::abs(value), 0.1);
  EXPECT_NEAR(of_parts, value, 1e-4);
}

TEST_F(LatentHeadsTest, WrongSizesAreRefused) {
  LatentHeadParts from = parts();
  from.q = random({kTokens, 26}, 1);
  const auto error = [&](const LatentHeads& heads) {
    return support::error_of([&] { latent_heads(*device_, heads, from, anyone()); });
  };
  EXPECT_NE(error(kHeads).find("q is f32 [6, 26]; it must be a contiguous [6, 27]"), std::string::npos)
      << error(kHeads);
  LatentHeads odd = kHeads;
  odd.rope_dim = 3;
  EXPECT_NE(error(odd).find("rope_dim even"), std::string::npos) << error(odd);
}

struct Attended {
  Values o, lse, grad_q, grad_k, grad_v;
};

/// Values and the gradient of O with zero columns at the end of each head add nothing to any sum.
TEST_F(LatentHeadsTest, AttentionOverNarrowValues_IsAttentionOverValuesWithZerosBehindThem) {
  constexpr std::int64_t kSeq = 70, kBatch = 2, kNumber = 4, kDim = 24, kNarrow = 10;
  const auto padded = [&](const Tensor& x, std::int64_t heads) {
    const std::vector<double> from = values(x);
    std::vector<float> to(static_cast<std::size_t>(x.rows() * heads * kDim));
    for (std::size_t row = 0; row < static_cast<std::size_t>(x.rows() * heads); ++row)
      for (std::size_t d = 0; d < kNarrow; ++d) to[row * kDim + d] = static_cast<float>(from[row * kNarrow + d]);
    return make_tensor(*device_, {x.rows(), heads * kDim}, DType::kF32, to);
  };
  const auto run = [&](const Tensor& v, const Tensor& grad_o, std::int64_t value_dim) {
    const AttentionShape shape{.seq = kSeq,
                               .batch = kBatch,
                               .heads = kNumber,
                               .kv_heads = 2,
                               .head_dim = kDim,
                               .value_dim = value_dim,
                               .window = 40,
                               .softmax_scale = 0.25f,
                               .dropout = 0.2f,
                               .seed = 5};
    const Tensor q = random({kSeq * kBatch, kNumber * kDim}, 1), k = random({kSeq * kBatch, 2 * kDim}, 2);
    const AttentionOutputs out = attention_forward(*device_, {.shape = shape,
                                                              .q = q.operand(),
                                                              .k = k.operand(),
                                                              .v = v.operand(),
                                                              .s = {},
                                                              .out_dtype = DType::kF32,
                                                              .o_holder = anyone(),
                                                              .lse_holder = anyone()});
    const auto like = [&](const Tensor& x) { return device_->allocate({x.shape(), DType::kF32}, anyone()); };
    const AttentionGradients grads{.q = like(q), .k = like(k), .v = like(v)};
    attention_backward(*device_, {.shape = shape,
                                  .q = q.operand(),
                                  .k = k.operand(),
                                  .v = v.operand(),
                                  .o = out.o.operand(),
                                  .grad_o = grad_o.operand(),
                                  .lse = out.lse,
                                  .s = {},
                                  .grad_p = {},
                                  .out = grads});
    return Attended{.o = values(out.o),
                    .lse = values(out.lse),
                    .grad_q = values(grads.q),
                    .grad_k = values(grads.k),
                    .grad_v = values(grads.v)};
  };
  const auto without_padding = [](const Values& x) {
    Values out;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i % kDim < kNarrow) {
        out.push_back(x[i]);
      } else {
        EXPECT_EQ(x[i], 0.0);
      }
    }
    return out;
  };
  const Tensor v = random({kSeq * kBatch, 2 * kNarrow}, 3), grad_o = random({kSeq * kBatch, kNumber * kNarrow}, 4);
  const Attended narrow = run(v, grad_o, kNarrow), wide = run(padded(v, 2), padded(grad_o, kNumber), 0);
  EXPECT_EQ(narrow.o, without_padding(wide.o));
  EXPECT_EQ(narrow.lse, wide.lse);
  EXPECT_EQ(narrow.grad_q, wide.grad_q);
  EXPECT_EQ(narrow.grad_k, wide.grad_k);
  EXPECT_EQ(narrow.grad_v, without_padding(wide.grad_v));
  EXPECT_GT(product_of(narrow.grad_q, narrow.grad_q), 1.0);
}

}  // namespace
}  // namespace fp8lab

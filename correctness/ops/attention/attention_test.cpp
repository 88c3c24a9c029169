#include "ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/check.h"
#include "ops/attention/attention_fixture.h"
#include "reference/compare.h"

namespace fp8lab::attention_test {
namespace {

using reference::bitwise_equal;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct ForwardCase {
  AttentionShape shape;
  DType dtype = DType::kF32;
};

// Sizes around the tiles of 32 queries and 64 keys, and head dimensions that fill no vector.
std::vector<ForwardCase> forward_cases() {
  const ShapeOptions shapes[] = {
      {.seq = 1, .batch = 2, .heads = 2, .kv_heads = 1, .head_dim = 8},
      {.seq = 7, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 5},
      {.seq = 32, .batch = 1, .heads = 1, .kv_heads = 1, .head_dim = 1},
      {.seq = 65, .batch = 2, .heads = 4, .kv_heads = 4, .head_dim = 64},
      {.seq = 130, .batch = 1, .heads = 3, .kv_heads = 1, .head_dim = 128},
  };
  std::vector<ForwardCase> cases;
  for (ShapeOptions options : shapes)
    for (const auto& [causal, window] : kMasks)
      for (const float dropout : {0.0f, 0.25f})
        for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
          options.causal = causal;
          options.window = window;
          options.dropout = dropout;
          cases.push_back({make_shape(options), dtype});
        }
  return cases;
}

class AttentionForwardTest : public AttentionTest, public ::testing::WithParamInterface<ForwardCase> {};

TEST_P(AttentionForwardTest, MatchesTheDefinition) {
  const auto [shape, dtype] = GetParam();
  const Qkv qkv = make_qkv(device_, shape, dtype);
  const AttentionOutputs out = run_forward(device_, shape, qkv, dtype);
  const auto expected = reference::attention_forward(reference_problem(shape, dtype), reference_inputs(device_, qkv));
  EXPECT_TRUE(within(device_.read(out.o), expected.o, dtype));
  EXPECT_TRUE(within(device_.read(out.lse), expected.lse));
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionForwardTest, ::testing::ValuesIn(forward_cases()),
                         [](const auto& row) { return describe(row.param.shape, row.param.dtype); });

// Each is an error that an implementation could make; the bound of the test above must refuse it.
TEST_F(AttentionTest, ForwardBoundCatchesMutations) {
  const AttentionShape shape =
      make_shape({.seq = 65, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .dropout = 0.25f});
  const Qkv qkv = make_qkv(device_, shape, DType::kBF16);
  const auto expected =
      reference::attention_forward(reference_problem(shape, DType::kBF16), reference_inputs(device_, qkv));
  const auto matches = [&](const AttentionShape& mutated, const Qkv& operands) {
    return within(device_.read(run_forward(device_, mutated, operands, DType::kBF16).o), expected.o, DType::kBF16);
  };
  ASSERT_TRUE(matches(shape, qkv));

  AttentionShape mutated = shape;
  mutated.causal = false;
  EXPECT_FALSE(matches(mutated, qkv)) << "no causal mask";
  mutated = shape;
  mutated.window = 64;
  EXPECT_FALSE(matches(mutated, qkv)) << "the last query does not see the first key";
  mutated = shape;
  mutated.softmax_scale = 1.0f;
  EXPECT_FALSE(matches(mutated, qkv)) << "no softmax_scale";
  mutated = shape;
  mutated.dropout = 0.0f;
  EXPECT_FALSE(matches(mutated, qkv)) << "no dropout";
  mutated = shape;
  mutated.stream += 1;
  EXPECT_FALSE(matches(mutated, qkv)) << "another dropout mask";
  EXPECT_FALSE(matches(shape, {qkv.q, qkv.v, qkv.k})) << "K and V exchanged";

  const AttentionOutputs out = run_forward(device_, shape, qkv, DType::kF32);
  std::vector<float> o = device_.read(out.o);
  ASSERT_TRUE(within(o, expected.o));
  for (float& x : o) x *= 1.0f - shape.dropout;
  EXPECT_FALSE(within(o, expected.o, DType::kBF16)) << "kept entries not divided by 1 - p";
  EXPECT_FALSE(within(std::vector<float>(o.size()), expected.o, DType::kBF16)) << "zero output";
  EXPECT_FALSE(within(std::vector<float>(o.size(), std::nanf("")), expected.o, DType::kBF16)) << "NaN output";
}

TEST_F(AttentionTest, ForwardBoundCatchesAnUnnormalisedRow) {
  const AttentionShape shape = make_shape({.seq = 40, .head_dim = 16});
  const Qkv qkv = make_qkv(device_, shape, DType::kF32);
  const auto expected = reference::attention_forward(reference_problem(shape), reference_inputs(device_, qkv));
  const AttentionOutputs out = run_forward(device_, shape, qkv, DType::kF32);
  std::vector<float> o = device_.read(out.o);
  ASSERT_TRUE(within(o, expected.o));
  // The row's sum has an error of one part in 10,000, as if a key of weight 1e-4 were missing.
  for (float& x : o) x *= 1.0001f;
  EXPECT_FALSE(within(o, expected.o));
}

TEST_F(AttentionTest, OneKeyReturnsItsValue) {
  const AttentionShape shape = make_shape({.seq = 1, .batch = 3, .heads = 2, .kv_heads = 2, .head_dim = 24});
  const Qkv qkv = make_qkv(device_, shape, DType::kBF16, 30.0f);
  const AttentionOutputs out = run_forward(device_, shape, qkv, DType::kBF16);
  EXPECT_TRUE(bitwise_equal(device_.read(out.o), device_.read(qkv.v.values)));
}

// A row whose every logit is -inf has no distribution: O is 0, lse is -inf, and nothing is NaN.
TEST_F(AttentionTest, FullyMaskedRowGivesZero) {
  const AttentionShape shape = make_shape({.seq = 3, .head_dim = 1});
  // Query 0 sees only key 0, at -1e60, which is -inf in FP32; query 1 sees keys 0 and 1, at 0 and 0.
  const Qkv qkv = {make_operand(device_, 1, DType::kF32, {1e30f, 0.0f, 1.0f}),
                   make_operand(device_, 1, DType::kF32, {-1e30f, 2.0f, 2.0f}),
                   make_operand(device_, 1, DType::kF32, {5.0f, 7.0f, 9.0f})};
  const AttentionOutputs out = run_forward(device_, shape, qkv, DType::kF32);
  const std::vector<float> o = device_.read(out.o);
  const std::vector<float> lse = device_.read(out.lse);
  EXPECT_EQ(o[0], 0.0f);
  EXPECT_EQ(lse[0], -kInfinity);
  EXPECT_FLOAT_EQ(o[1], 6.0f);
  EXPECT_FLOAT_EQ(o[2], 8.0f);

  const Operand grad_o = make_operand(device_, 1, DType::kF32, {1.0f, 1.0f, 1.0f});
  const AttentionGradients grads =
      run_backward(device_, shape, {qkv, {out.o, {}}, grad_o, out.lse, {}, {}}, DType::kF32);
  EXPECT_EQ(device_.read(grads.q)[0], 0.0f);
  EXPECT_FLOAT_EQ(device_.read(grads.v)[0], 0.5f);
  for (const Tensor& gradient : {grads.q, grads.k, grads.v})
    for (const float x : device_.read(gradient)) EXPECT_TRUE(std::isfinite(x));
}

TEST_F(AttentionTest, HugeLogitsSelectOneKey) {
  const AttentionShape shape = make_shape({.seq = 70, .head_dim = 1, .causal = false});
  std::vector<float> keys(70, -100.0f);
  keys[66] = 100.0f;
  std::vector<float> values = gaussian(70, 3);
  const Qkv qkv = {
      make_operand(device_, 1, DType::kF32, std::vector<float>(70, 100.0f)),  // logits of -1e4 and one of 1e4
      make_operand(device_, 1, DType::kF32, keys), make_operand(device_, 1, DType::kF32, values)};
  const AttentionOutputs out = run_forward(device_, shape, qkv, DType::kF32);
  for (const float o : device_.read(out.o)) EXPECT_EQ(o, values[66]);
  for (const float lse : device_.read(out.lse)) EXPECT_EQ(lse, 1e4f);
  const Operand grad_o = make_operand(device_, 1, DType::kF32, gaussian(70, 4));
  const AttentionGradients grads =
      run_backward(device_, shape, {qkv, {out.o, {}}, grad_o, out.lse, {}, {}}, DType::kF32);
  // The distribution does not change with its logits, so only V has a gradient: P^T dO.
  for (const float x : device_.read(grads.q)) EXPECT_EQ(x, 0.0f);
  for (const float x : device_.read(grads.k)) EXPECT_EQ(x, 0.0f);
  const std::vector<float> grad_v = device_.read(grads.v);
  for (std::size_t j = 0; j < grad_v.size(); ++j) EXPECT_EQ(grad_v[j] != 0.0f, j == 66);
}

// Logits spread over +-1e4, at which FP32 resolves 2^-10: the bound grows with them, and no result is NaN.
TEST_F(AttentionTest, HugeSpreadLogitsStayWithinTheirBound) {
  const AttentionShape shape = make_shape({.seq = 50, .heads = 2, .head_dim = 16});
  const Qkv qkv = make_qkv(device_, shape, DType::kF32, 50.0f);
  const auto problem = reference_problem(shape);
  const auto inputs = reference_inputs(device_, qkv);
  const auto expected = reference::attention_forward(problem, inputs);
  const AttentionOutputs out = run_forward(device_, shape, qkv, DType::kF32);
  EXPECT_TRUE(within(device_.read(out.o), expected.o));
  EXPECT_TRUE(within(device_.read(out.lse), expected.lse));
}

// Under the causal mask a longer sequence does not change earlier results, wherever the tiles end.
TEST_F(AttentionTest, LaterTokensDoNotChangeEarlierResults) {
  const AttentionShape full = make_shape({.seq = 100, .batch = 2, .heads = 2, .kv_heads = 1, .head_dim = 16});
  const Qkv qkv = make_qkv(device_, full, DType::kBF16);
  const std::vector<float> o = device_.read(run_forward(device_, full, qkv, DType::kF32).o);
  for (const std::int64_t seq : {1, 31, 33, 64, 65, 99}) {
    AttentionShape shorter = full;
    shorter.seq = seq;
    const auto first = [&](const Operand& operand) {
      return Operand{operand.values.row_range(0, tokens(shorter)), {}};
    };
    const Tensor prefix = run_forward(device_, shorter, {first(qkv.q), first(qkv.k), first(qkv.v)}, DType::kF32).o;
    const std::vector<float> expected(o.begin(), o.begin() + static_cast<std::ptrdiff_t>(prefix.numel()));
    EXPECT_TRUE(bitwise_equal(device_.read(prefix), expected)) << "seq " << seq;
  }
}

TEST_F(AttentionTest, RepeatedCallsAreBitwiseEqual) {
  const AttentionShape shape =
      make_shape({.seq = 77, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 24, .dropout = 0.2f});
  const Qkv qkv = make_qkv(device_, shape, DType::kBF16);
  const Operand grad_o =
      make_operand(device_, query_cols(shape), DType::kBF16, gaussian(tokens(shape) * query_cols(shape), 2));
  std::vector<std::vector<float>> runs[2];
  for (auto& run : runs) {
    const AttentionOutputs out = run_forward(device_, shape, qkv, DType::kBF16);
    const AttentionGradients grads =
        run_backward(device_, shape, {qkv, {out.o, {}}, grad_o, out.lse, {}, {}}, DType::kBF16);
    for (const Tensor& tensor : {out.o, out.lse, grads.q, grads.k, grads.v}) run.push_back(device_.read(tensor));
  }
  for (std::size_t i = 0; i < runs[0].size(); ++i) EXPECT_TRUE(bitwise_equal(runs[0][i], runs[1][i]));
}

TEST_F(AttentionTest, EmptySequenceAndEmptyBatchGiveEmptyResults) {
  for (const auto& [seq, batch] : {std::pair{0, 3}, {4, 0}}) {
    const AttentionShape shape = make_shape({.seq = seq, .batch = batch, .heads = 2, .kv_heads = 1});
    const Qkv qkv = make_qkv(device_, shape, DType::kBF16);
    const AttentionOutputs out = run_forward(device_, shape, qkv, DType::kBF16);
    EXPECT_EQ(out.o.numel(), 0);
    EXPECT_EQ(run_backward(device_, shape, {qkv, {out.o, {}}, {out.o, {}}, out.lse, {}, {}}, DType::kBF16).k.numel(),
              0);
  }
}

TEST(Attention, MetaAllocatesAsCpuDoes) {
  std::uint64_t hashes[2];
  std::size_t events[2];
  int run = 0;
  for (const char* name_of_it : {"cpu", "meta"}) {
    const std::unique_ptr<Device> device = open_device(name_of_it);
    const AttentionShape shape = make_shape({.seq = 20, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 16});
    device->ledger().set_phase(PhaseKind::kForward, 0);
    const Qkv qkv = make_qkv(*device, shape, DType::kBF16);
    {
      const AttentionOutputs out = run_forward(*device, shape, qkv, DType::kBF16);
      device->ledger().set_phase(PhaseKind::kBackward, 0);
      run_backward(*device, shape, {qkv, {out.o, {}}, {out.o, {}}, out.lse, {}, {}}, DType::kBF16);
    }
    hashes[run] = device->ledger().sequence_hash();
    events[run++] = device->ledger().events_seen();
  }
  EXPECT_GE(events[0], 6u);
  EXPECT_EQ(events[0], events[1]);
  EXPECT_EQ(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace fp8lab::attention_test

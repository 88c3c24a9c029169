// The GPU's kernels of attention compared with each other at the sizes of real models, for which a reference with full
// S x S matrices is too large. The general kernels have the bits of the host's (ops/attention_test judges both), so
// they are the reference here.

#include "cuda/attention_on_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "cuda/attention_rows.h"
#include "reference/compare.h"

namespace fp8lab::attention_test {
namespace {

std::vector<AttentionShape> large_shapes() {
  return {make_shape({.seq = 1024, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 128}),
          make_shape({.seq = 1024, .batch = 1, .heads = 2, .kv_heads = 2, .head_dim = 64, .causal = false}),
          make_shape({.seq = 1111, .batch = 2, .heads = 2, .kv_heads = 1, .head_dim = 128, .causal = false}),
          make_shape({.seq = 4096, .batch = 1, .heads = 2, .kv_heads = 1, .head_dim = 64}),
          make_shape({.seq = 1111, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 128, .window = 300}),
          make_shape({.seq = 2048, .batch = 1, .heads = 2, .kv_heads = 1, .head_dim = 64, .window = 128})};
}

class SixteenBitsTest : public AttentionOnGpuTest, public ::testing::WithParamInterface<AttentionShape> {
 protected:
  // P and dS enter their products as bf16, with an error of up to 2^-8 each; the results are rounded to bf16 once more.
  static constexpr double kRounding = 0x1p-8;
  // Over a full tensor these errors are independent: 2^-8 / sqrt(3) at most for P or dS, the same for the last rounding
  // on either side, and as much for the error of P within dS.
  static constexpr double kDistance = 2 * 0x1p-8 / 1.7;

  void expect_forward(Forward way) {
    const AttentionShape& shape = GetParam();
    const Qkv qkv = make_qkv(device_, shape, DType::kBF16);
    const AttentionOutputs expected = make_outputs(shape, DType::kF32), spread = make_outputs(shape, DType::kF32);
    const AttentionOutputs actual = make_outputs(shape, DType::kBF16), again = make_outputs(shape, DType::kBF16);
    ASSERT_TRUE(forward(general_forward, shape, qkv, expected));
    ASSERT_TRUE(forward(general_forward, shape, {qkv.q, qkv.k, magnitudes(device_, qkv.v, key_cols(shape))}, spread));
    ASSERT_TRUE(forward(way, shape, qkv, actual));
    ASSERT_TRUE(forward(way, shape, qkv, again));
    const std::vector<float> o = device_.read(expected.o), sums = device_.read(spread.o);
    EXPECT_EQ(outside(device_.read(actual.o), o, sums, kRounding, kRounding + 0x1p-14), 0u);
    EXPECT_LT(distance(device_.read(actual.o), o), kDistance);
    const std::vector<float> lse = device_.read(expected.lse), ones(lse.size(), 1.0f);
    EXPECT_EQ(outside(device_.read(actual.lse), lse, ones, 0x1p-23, kLseError), 0u);
    EXPECT_EQ(device_.read_bytes(actual.o), device_.read_bytes(again.o));
    EXPECT_EQ(device_.read_bytes(actual.lse), device_.read_bytes(again.lse));
  }

  void expect_backward(Backward way) {
    const AttentionShape& shape = GetParam();
    const Qkv qkv = make_qkv(device_, shape, DType::kBF16);
    const AttentionOutputs out = make_outputs(shape, DType::kBF16);
    ASSERT_TRUE(forward(general_forward, shape, qkv, out));
    const BackwardOperands operands{qkv,     {out.o, {}}, gaussian_operand(shape, query_cols(shape), DType::kBF16, 2),
                                    out.lse, {},          {}};
    const Gradients expected = backward(general_backward, shape, operands, DType::kF32);
    const Gradients actual = backward(way, shape, operands, DType::kBF16),
                    again = backward(way, shape, operands, DType::kBF16);
    EXPECT_LT(distance(actual.q, expected.q), kDistance);
    EXPECT_LT(distance(actual.k, expected.k), kDistance);
    EXPECT_LT(distance(actual.v, expected.v), kDistance);
    if (context_.deterministic()) {
      EXPECT_TRUE(reference::bitwise_equal(actual.q, again.q));
      EXPECT_TRUE(reference::bitwise_equal(actual.k, again.k));
      EXPECT_TRUE(reference::bitwise_equal(actual.v, again.v));
    }
    // Every position counts, not only the sum: the last tenth of the tokens is also compared by itself.
    const auto tail = [](const std::vector<float>& all) {
      return std::vector<float>(all.end() - static_cast<std::ptrdiff_t>(all.size() / 10), all.end());
    };
    EXPECT_LT(distance(tail(actual.q), tail(expected.q)), 2 * kDistance);
    EXPECT_LT(distance(tail(actual.k), tail(expected.k)), 2 * kDistance);
    EXPECT_LT(distance(tail(actual.v), tail(expected.v)), 2 * kDistance);
  }
};

TEST_P(SixteenBitsTest, MatrixUnitsForwardIsNearTheGeneralOne) { expect_forward(tensor_forward); }
TEST_P(SixteenBitsTest, MatrixUnitsBackwardIsNearTheGeneralOne) { expect_backward(tensor_backward); }
TEST_P(SixteenBitsTest, CudnnForwardIsNearTheGeneralOneOrRefuses) {
  const AttentionShape& shape = GetParam();
  if (cuda::cudnn_unavailable_reason().empty()) return expect_forward(cuda::attention_cudnn_forward);
  const AttentionOutputs out = make_outputs(shape, DType::kBF16);
  EXPECT_FALSE(forward(cuda::attention_cudnn_forward, shape, make_qkv(device_, shape, DType::kBF16), out));
}
TEST_P(SixteenBitsTest, CudnnBackwardIsNearTheGeneralOneOrRefuses) {
  if (!cuda::cudnn_unavailable_reason().empty()) {
    EXPECT_FALSE(cuda::attention_cudnn_backward({}, context_));
    return;
  }
  for (const bool deterministic : {false}) {
    context_.set_deterministic(deterministic);
    expect_backward(cuda::attention_cudnn_backward);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SixteenBitsTest, ::testing::ValuesIn(large_shapes()),
                         [](const auto& row) { return describe(row.param, DType::kBF16); });

// On matrix units casts of P and dS and products of quantized data are exact, so only the order of sums differs, and
// casts of values within that error of a tie: with a relative error of P of 2^-14 at most and a quantum of 2^-4 or more
// that is one cast in 500, each off by a quantum.
class Float8Test : public AttentionOnGpuTest, public ::testing::WithParamInterface<AttentionShape> {
 protected:
  static constexpr double kDistance = 0x1p-4 / 22;  // 2^-4 of the square root of one in 500
};

TEST_P(Float8Test, MatrixUnitsCastAsTheGeneralKernels) {
  AttentionShape shape = GetParam();
  for (const float dropout : {0.0f, 0.2f}) {
    shape.dropout = dropout;
    const Qkv qkv = float8_qkv(shape);
    const Operand grad_o = float8_operand(shape, query_cols(shape), DType::kE5M2, 4);
    const Tensor scale_s = make_scalar(device_, 440.0f), scale_p = make_scalar(device_, 65536.0f);
    const auto role = [&](DType dtype, const Tensor& scale, const Tensor& amax) {
      return AttentionRole{.dtype = dtype, .scale = scale.data<float>(), .amax = amax.data<float>()};
    };
    struct Side {
      std::vector<float> o, lse;
      Gradients gradients;
      float amax_s = 0, amax_p = 0;
    } sides[2];
    Tensor o_of_general;
    for (int i = 0; i < 2; ++i) {
      const Tensor amax_s = make_scalar(device_, 0.0f), amax_p = make_scalar(device_, 0.0f);
      const AttentionOutputs out = make_outputs(shape, DType::kBF16);
      ASSERT_TRUE(
          forward(i == 0 ? general_forward : tensor_forward, shape, qkv, out, role(DType::kE4M3, scale_s, amax_s)));
      if (i == 0) o_of_general = out.o;
      sides[i].o = device_.read(out.o);
      sides[i].lse = device_.read(out.lse);
      sides[i].amax_s = device_.read(amax_s)[0];
      sides[i].gradients = backward(i == 0 ? general_backward : tensor_backward, shape,
                                    {qkv,
                                     {o_of_general, {}},
                                     grad_o,
                                     out.lse,
                                     role(DType::kE4M3, scale_s, amax_s),
                                     role(DType::kE5M2, scale_p, amax_p)},
                                    DType::kBF16);
      sides[i].amax_p = device_.read(amax_p)[0];
    }
    EXPECT_LT(distance(sides[1].o, sides[0].o), kDistance + 0x1p-8);
    EXPECT_EQ(outside(sides[1].lse, sides[0].lse, std::vector<float>(sides[0].lse.size(), 1.0f), 0x1p-23, kLseError),
              0u);
    EXPECT_NEAR(sides[1].amax_s, sides[0].amax_s, 0x1p-13f * sides[0].amax_s);
    EXPECT_NEAR(sides[1].amax_p, sides[0].amax_p, 0x1p-10f * sides[0].amax_p);
    EXPECT_LT(distance(sides[1].gradients.q, sides[0].gradients.q), 2 * kDistance + 0x1p-8);
    EXPECT_LT(distance(sides[1].gradients.k, sides[0].gradients.k), 2 * kDistance + 0x1p-8);
    EXPECT_LT(distance(sides[1].gradients.v, sides[0].gradients.v), kDistance + 0x1p-8);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Float8Test, ::testing::ValuesIn(large_shapes()),
                         [](const auto& row) { return describe(row.param, DType::kE4M3); });

// A tile has 128 rows, of which one position fills one. If dropout drops its only entry, P is 0 and so is its amax.
TEST_F(AttentionOnGpuTest, RowsBehindTheLastQueryAreNotMeasured) {
  AttentionShape shape = make_shape({.seq = 1, .heads = 1, .kv_heads = 1, .head_dim = 64, .dropout = 0.5f});
  const Qkv qkv = float8_qkv(shape);
  const Tensor scale = make_scalar(device_, 100.0f);
  int dropped = 0;
  for (shape.stream = 0; shape.stream < 16; ++shape.stream) {
    float amaxes[2];
    for (int i = 0; i < 2; ++i) {
      const Tensor amax = make_scalar(device_, 0.0f);
      ASSERT_TRUE(forward(i == 0 ? general_forward : tensor_forward, shape, qkv, make_outputs(shape, DType::kBF16),
                          {.dtype = DType::kE4M3, .scale = scale.data<const float>(), .amax = amax.data<float>()}));
      amaxes[i] = device_.read(amax)[0];
    }
    EXPECT_EQ(amaxes[1], amaxes[0]) << "stream " << shape.stream;
    dropped += amaxes[0] == 0.0f;
  }
  EXPECT_GT(dropped, 0);
}

// Dropout in 16 bits, whose mask is drawn per entry, drops the same entries in all kernels.
TEST_F(AttentionOnGpuTest, MatrixUnitsDropTheSameEntries) {
  const AttentionShape shape =
      make_shape({.seq = 515, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .causal = true, .dropout = 0.3f});
  const Qkv qkv = make_qkv(device_, shape, DType::kBF16);
  const AttentionOutputs expected = make_outputs(shape, DType::kBF16), actual = make_outputs(shape, DType::kBF16);
  ASSERT_TRUE(forward(general_forward, shape, qkv, expected));
  ASSERT_TRUE(forward(tensor_forward, shape, qkv, actual));
  EXPECT_LT(distance(device_.read(actual.o), device_.read(expected.o)), 2 * 0x1p-8 / 1.7);
  const BackwardOperands operands{
      qkv, {expected.o, {}}, gaussian_operand(shape, query_cols(shape), DType::kBF16, 2), expected.lse, {}, {}};
  const Gradients a = backward(general_backward, shape, operands, DType::kBF16);
  const Gradients b = backward(tensor_backward, shape, operands, DType::kBF16);
  EXPECT_LT(distance(b.q, a.q), 2 * 0x1p-8 / 1.7);
  EXPECT_LT(distance(b.k, a.k), 2 * 0x1p-8 / 1.7);
  EXPECT_LT(distance(b.v, a.v), 2 * 0x1p-8 / 1.7);
}

// Tiles that end everywhere: of keys, of queries and of both, with the mask and without, in groups and singly, for all
// types of results.
TEST_F(AttentionOnGpuTest, MatrixUnitsBackwardSupportsAnyLength) {
  constexpr DType kTypes[] = {DType::kBF16, DType::kF32, DType::kF16};
  int round = 0;
  for (const std::int64_t seq : {63, 64, 65, 127, 128, 129, 191, 192, 193, 320, 577})
    for (const std::int64_t dim : {64, 128})
      for (const Mask& mask : {Mask{true, 0}, {false, 0}, {true, 2}, {true, 62}}) {
        const std::int64_t members = 1 + ++round % 3;
        const AttentionShape shape = make_shape({.seq = seq,
                                                 .batch = 1 + round % 2,
                                                 .heads = 2 * members,
                                                 .kv_heads = 2,
                                                 .head_dim = dim,
                                                 .causal = mask.causal,
                                                 .window = mask.window});
        SCOPED_TRACE(describe(shape, kTypes[round % 3]));
        const Qkv qkv = make_qkv(device_, shape, DType::kBF16);
        const AttentionOutputs out = make_outputs(shape, DType::kBF16);
        ASSERT_TRUE(forward(general_forward, shape, qkv, out));
        const BackwardOperands operands{
            qkv, {out.o, {}}, gaussian_operand(shape, query_cols(shape), DType::kBF16, 2), out.lse, {}, {}};
        const Gradients expected = backward(general_backward, shape, operands, DType::kF32);
        const Gradients actual = backward(tensor_backward, shape, operands, kTypes[round % 3]);
        const Gradients again = backward(tensor_backward, shape, operands, kTypes[round % 3]);
        EXPECT_LT(distance(actual.q, expected.q), 2 * 0x1p-8 / 1.7);
        EXPECT_LT(distance(actual.k, expected.k), 2 * 0x1p-8 / 1.7);
        EXPECT_LT(distance(actual.v, expected.v), 2 * 0x1p-8 / 1.7);
        EXPECT_TRUE(reference::bitwise_equal(actual.q, again.q));
        EXPECT_TRUE(reference::bitwise_equal(actual.k, again.k));
        EXPECT_TRUE(reference::bitwise_equal(actual.v, again.v));
      }
}

// Sinks below, among and far above the logits, in windows and without.
TEST_F(AttentionOnGpuTest, SinksJoinTheSumInEveryKernel) {
  for (const std::int64_t window : {0, 200})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const AttentionShape shape =
          make_shape({.seq = 515, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .window = window});
      const Qkv qkv = make_qkv(device_, shape, DType::kBF16);
      const Tensor sinks = make_operand(device_, 4, dtype, {-30.0f, 0.5f, 3.0f, 8.0f}).values;
      const AttentionOutputs expected = make_outputs(shape, DType::kF32), actual = make_outputs(shape, DType::kBF16);
      ASSERT_TRUE(forward(general_forward, shape, qkv, expected, {}, {}, sinks));
      const std::vector<float> lse = device_.read(expected.lse), ones(lse.size(), 1.0f);
      for (const Forward way : {cuda::attention_cudnn_forward, tensor_forward}) {
        if (way == cuda::attention_cudnn_forward && !cuda::cudnn_unavailable_reason().empty()) continue;
        ASSERT_TRUE(forward(way, shape, qkv, actual, {}, {}, sinks));
        EXPECT_LT(distance(device_.read(actual.o), device_.read(expected.o)), 2 * 0x1p-8 / 1.7);
        EXPECT_EQ(outside(device_.read(actual.lse), lse, ones, 0x1p-22, 2 * kLseError), 0u);
      }
      const BackwardOperands operands{
          qkv, {actual.o, {}}, gaussian_operand(shape, query_cols(shape), DType::kBF16, 2), expected.lse, {}, {}};
      const Gradients a = backward(general_backward, shape, operands, DType::kF32, sinks);
      const Gradients b = backward(tensor_backward, shape, operands, DType::kBF16, sinks);
      EXPECT_LT(distance(b.q, a.q), 2 * 0x1p-8 / 1.7);
      EXPECT_LT(distance(b.k, a.k), 2 * 0x1p-8 / 1.7);
      EXPECT_LT(distance(b.v, a.v), 2 * 0x1p-8 / 1.7);
      // Sums of the same numbers in double: they differ by the rounding of each dot product to FP32.
      EXPECT_LT(distance(b.sinks, a.sinks), dtype == DType::kF32 ? 0x1p-20 : 0x1p-8);
    }
}

// The heads of DeepSeek-V3: keys of 192 columns and values of 128. cuDNN has no deterministic gradients of them.
TEST_F(AttentionOnGpuTest, CudnnValuesMayBeNarrowerThanKeys) {
  if (!cuda::cudnn_unavailable_reason().empty()) GTEST_SKIP() << cuda::cudnn_unavailable_reason();
  const AttentionShape shape =
      make_shape({.seq = 1024, .batch = 2, .heads = 4, .kv_heads = 4, .head_dim = 192, .value_dim = 128});
  const Qkv qkv = make_qkv(device_, shape, DType::kBF16);
  const AttentionOutputs expected = make_outputs(shape, DType::kF32), actual = make_outputs(shape, DType::kBF16);
  ASSERT_TRUE(forward(general_forward, shape, qkv, expected));
  ASSERT_TRUE(forward(cuda::attention_cudnn_forward, shape, qkv, actual));
  EXPECT_LT(distance(device_.read(actual.o), device_.read(expected.o)), 2 * 0x1p-8 / 1.7);
  const BackwardOperands operands{
      qkv, {actual.o, {}}, gaussian_operand(shape, output_cols(shape), DType::kBF16, 2), expected.lse, {}, {}};
  const Gradients a = backward(general_backward, shape, operands, DType::kF32);
  context_.set_deterministic(false);
  const Gradients b = backward(cuda::attention_cudnn_backward, shape, operands, DType::kBF16);
  EXPECT_LT(distance(b.q, a.q), 2 * 0x1p-8 / 1.7);
  EXPECT_LT(distance(b.k, a.k), 2 * 0x1p-8 / 1.7);
  EXPECT_LT(distance(b.v, a.v), 2 * 0x1p-8 / 1.7);
}

// With one position P is 1, so dV is dO and all other gradients are zero.
TEST_F(AttentionOnGpuTest, MatrixUnitsBackwardSupportsOnePosition) {
  const AttentionShape shape = make_shape({.seq = 1, .batch = 3, .heads = 2, .kv_heads = 2, .head_dim = 128});
  const Qkv qkv = make_qkv(device_, shape, DType::kBF16);
  const AttentionOutputs out = make_outputs(shape, DType::kBF16);
  ASSERT_TRUE(forward(general_forward, shape, qkv, out));
  const Operand grad_o = gaussian_operand(shape, query_cols(shape), DType::kBF16, 2);
  const Gradients actual = backward(tensor_backward, shape, {qkv, {out.o, {}}, grad_o, out.lse, {}, {}}, DType::kBF16);
  EXPECT_EQ(actual.v, device_.read(grad_o.values));
  for (const std::vector<float>& grad : {actual.q, actual.k})
    for (const float x : grad) EXPECT_LE(std::fabs(x), 0x1p-10f);
}

/// The error of an FP32 sum dP in dQ: 130 roundings of 2^-24 of magnitudes that add up to at most 128, times K and
/// softmax_scale.
constexpr double kDifferenceError = 130 * 128 * 0x1p-24 * 0.125;

// Every kernel is compared with the definition itself, at rows in and around tiles, among them the last.
TEST_P(SixteenBitsTest, SampledRowsAreNearTheDefinition) {
  const AttentionShape& shape = GetParam();
  const Qkv qkv = make_qkv(device_, shape, DType::kBF16);
  const Operand grad_o = gaussian_operand(shape, query_cols(shape), DType::kBF16, 2);
  const RowReference reference(shape, read(device_, qkv.q), read(device_, qkv.k), read(device_, qkv.v));
  const std::vector<double> grads = read(device_, grad_o);
  struct Path {
    Forward forward;
    Backward backward;
    double rounding;  ///< relative error of P and dS
  };
  for (const Path& path : {Path{general_forward, general_backward, 0.0},
                           {tensor_forward, tensor_backward, kRounding},
                           {cuda::attention_cudnn_forward, cuda::attention_cudnn_backward, kRounding}}) {
    if (path.forward == cuda::attention_cudnn_forward && !cuda::cudnn_unavailable_reason().empty()) continue;
    const AttentionOutputs out = make_outputs(shape, DType::kBF16);
    ASSERT_TRUE(forward(path.forward, shape, qkv, out));
    const Gradients gradients =
        backward(path.backward, shape, {qkv, {out.o, {}}, grad_o, out.lse, {}, {}}, DType::kBF16);
    const std::vector<double> o = read(device_, {out.o, {}});
    const std::vector<float> lse = device_.read(out.lse);
    for (const std::int64_t query :
         {std::int64_t{0}, std::int64_t{63}, std::int64_t{64}, std::int64_t{200}, shape.seq / 2, shape.seq - 1}) {
      const std::int64_t sequence = query % shape.batch, head = query % shape.heads;
      const std::size_t at = reference.query(sequence, head, query);
      const RowReference::Row row = reference.o(sequence, head, query);
      const RowReference::Row grad = reference.grad_q(sequence, head, query, o, grads);
      EXPECT_NEAR(
          static_cast<double>(lse[static_cast<std::size_t>((sequence * shape.heads + head) * shape.seq + query)]),
          row.lse, kLseError);
      for (std::size_t d = 0; d < row.value.size(); ++d) {
        EXPECT_NEAR(o[at + d], row.value[d],
                    kRounding * std::fabs(row.value[d]) + (path.rounding + 4 * kLseError) * row.spread[d]);
        EXPECT_NEAR(
            static_cast<double>(gradients.q[at + d]), grad.value[d],
            kRounding * std::fabs(grad.value[d]) + (path.rounding + 8 * kLseError) * grad.spread[d] + kDifferenceError);
      }
    }
  }
}

// Through the operations, as layers call them: the algorithm that the table chooses is used and recorded once.
class RecordedAlgorithmTest : public AttentionOnGpuTest, public ::testing::WithParamInterface<bool> {};

TEST_P(RecordedAlgorithmTest, ChosenAlgorithmIsRecordedOnce) {
  context_.set_deterministic(GetParam());
  const AttentionShape shape = make_shape({.seq = 600, .batch = 1, .heads = 2, .kv_heads = 1, .head_dim = 128});
  const Qkv qkv = make_qkv(device_, shape, DType::kBF16);
  for (int i = 0; i < 2; ++i) {
    const AttentionOutputs out = run_forward(device_, shape, qkv, DType::kBF16);
    run_backward(device_, shape,
                 {qkv, {out.o, {}}, gaussian_operand(shape, query_cols(shape), DType::kBF16, 2), out.lse, {}, {}},
                 DType::kBF16);
  }
  const bool cudnn = cuda::cudnn_unavailable_reason().empty();
  EXPECT_EQ(device_.notes(),
            (std::vector<std::string>{
                cudnn ? "attention forward: cuDNN in 16 bits" : "attention forward: own matrix-unit kernel",
                cudnn && !GetParam() ? "attention backward: cuDNN in 16 bits"
                                     : "attention backward: own matrix-unit kernel"}));
}

INSTANTIATE_TEST_SUITE_P(, RecordedAlgorithmTest, ::testing::Values(true, false),
                         [](const auto& row) { return row.param ? "Deterministic" : "AnyOrder"; });

}  // namespace
}  // namespace fp8lab::attention_test

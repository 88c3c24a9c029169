// cuDNN's FP8 attention, which makes casts that this project's definition does not make. It is compared with
// attention of the same data without those casts, within the error that they may cause.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "cuda/attention_on_gpu.h"
#include "cuda/attention_rows.h"

namespace fp8lab::attention_test {
namespace {

AttentionRole role(DType dtype, const Tensor& scale, const Tensor& amax) {
  return {.dtype = dtype, .scale = scale.data<float>(), .amax = amax.data<float>()};
}

float amax_of(std::initializer_list<const std::vector<float>*> tensors) {
  float largest = 0;
  for (const std::vector<float>* values : tensors)
    for (const float x : *values) largest = std::max(largest, std::fabs(x));
  return largest;
}

// cuDNN casts P relative to the running maximum of its row instead of lse: ties differ, the relative error is the same.
// Compared with attention of the same data without a cast of P, the casts of P and O each cause an error of 2^-4 /
// sqrt(3) at most. The amax follows the definition.
TEST_F(AttentionOnGpuTest, CudnnFloat8ForwardIsWithinItsCastsOrRefuses) {
  if (!cuda::cudnn_unavailable_reason().empty()) {
    EXPECT_FALSE(cuda::attention_cudnn_float8_forward({}, context_));
    return;
  }
  for (const ShapeOptions& options :
       {ShapeOptions{.seq = 1024, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 128},
        {.seq = 1024, .batch = 1, .heads = 2, .kv_heads = 2, .head_dim = 128, .causal = false},
        {.seq = 2048, .batch = 1, .heads = 4, .kv_heads = 1, .head_dim = 64},
        {.seq = 1024, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 128, .window = 300}}) {
    const AttentionShape shape = make_shape(options);
    const Qkv qkv = float8_qkv(shape);
    const AttentionOutputs expected = make_outputs(shape, DType::kF32), actual = make_outputs(shape, DType::kBF16);
    ASSERT_TRUE(forward(general_forward, shape, qkv, expected));
    const Tensor scale_s = make_scalar(device_, 448.0f), amax_s = make_scalar(device_, 0.0f),
                 largest_p = make_scalar(device_, 0.0f);
    ASSERT_TRUE(forward(general_forward, shape, qkv, make_outputs(shape, DType::kBF16),
                        role(DType::kE4M3, scale_s, largest_p)));
    const Tensor scale_o = make_scalar(device_, 100.0f), amax_o = make_scalar(device_, 0.0f);
    const bool computed = forward(cuda::attention_cudnn_float8_forward, shape, qkv, actual,
                                  role(DType::kE4M3, scale_s, amax_s), role(DType::kE4M3, scale_o, amax_o));
    if (!computed && shape.window > 0) {
      std::cout << "this frontend of cuDNN has no windows in FP8\n";
      continue;
    }
    ASSERT_TRUE(computed);
    const std::vector<float> o = device_.read(expected.o), data = device_.read(actual.o);
    EXPECT_LT(distance(data, o), 2 * 0x1p-4 / 1.7);
    EXPECT_NEAR(device_.read(amax_o)[0], amax_of({&o}), 0x1p-4f * amax_of({&o}));
    // Relative to a row's maximum P reaches 1; relative to its lse it reaches the P of the definition.
    EXPECT_GE(device_.read(amax_s)[0], (1 - 0x1p-4f) * device_.read(largest_p)[0]);
    EXPECT_LE(device_.read(amax_s)[0], 1 + 0x1p-4f);
    const std::vector<float> lse = device_.read(expected.lse), ones(lse.size(), 1.0f);
    EXPECT_EQ(outside(device_.read(actual.lse), lse, ones, 0x1p-23, 16 * 4 * 0x1p-13), 0u);
  }
}

// The cast of P may change O by 2^-4, so the amax is tested more tightly on data for which it is exact. V's largest
// element is at the first key. The first query sees only that key, with a P of 1 that every cast keeps; all other O are
// means of V. A single product is exact in the matrix units' 13 fraction bits. Under the chosen scale the cast of that
// O, 304.9, gives 320.
TEST_F(AttentionOnGpuTest, CudnnFloat8ForwardMeasuresOBeforeItsCast) {
  if (const std::string reason = cuda::cudnn_unavailable_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const AttentionShape shape = make_shape({.seq = 512, .batch = 1, .heads = 2, .kv_heads = 1, .head_dim = 128});
  std::vector<float> v = gaussian(tokens(shape) * key_cols(shape), 3);
  for (float& x : v) x = std::clamp(x, -3.0f, 3.0f);
  v[0] = 4.5f;
  Qkv qkv = float8_qkv(shape);
  qkv.v = make_quantized(device_, key_cols(shape), DType::kE4M3, v, 64.0f);
  const RowReference reference(shape, read(device_, qkv.q), read(device_, qkv.k), read(device_, qkv.v));
  double largest = 0;
  for (std::int64_t head = 0; head < shape.heads; ++head)
    for (std::int64_t query = 0; query < shape.seq; ++query)
      for (const double x : reference.o(0, head, query).value) largest = std::max(largest, std::fabs(x));

  const Tensor scale_s = make_scalar(device_, 448.0f), amax_s = make_scalar(device_, 0.0f);
  const Tensor scale_o = make_scalar(device_, 67.75f), amax_o = make_scalar(device_, 0.0f);
  const AttentionOutputs out = attention_forward(device_, {.shape = shape,
                                                           .q = qkv.q.view(),
                                                           .k = qkv.k.view(),
                                                           .v = qkv.v.view(),
                                                           .s = role(DType::kE4M3, scale_s, amax_s),
                                                           .o_cast = role(DType::kE4M3, scale_o, amax_o)});
  EXPECT_TRUE(out.o_measured);
  EXPECT_NEAR(static_cast<double>(device_.read(amax_o)[0]), largest, 0x1p-12 * largest);
  const std::vector<float> rounded = device_.read(out.o);
  EXPECT_GT(static_cast<double>(amax_of({&rounded})),
            1.04 * largest);  // the amax after the cast, which must not be recorded as O's amax
}

/// A step of head_dim 128 whose gradients cuDNN computes from quantized data, with scales under which no gradient
/// saturates.
class CudnnFloat8BackwardTest : public AttentionOnGpuTest {
 protected:
  struct Step {
    Qkv qkv;
    Operand o;
    Operand grad_o;
    Tensor lse;
  };
  Step make_step(const AttentionShape& shape) {
    const Qkv qkv = float8_qkv(shape);
    const AttentionOutputs out = make_outputs(shape, DType::kF32);
    EXPECT_TRUE(forward(general_forward, shape, qkv, out));
    return {qkv, make_quantized(device_, query_cols(shape), DType::kE4M3, device_.read(out.o), 64.0f),
            float8_operand(shape, query_cols(shape), DType::kE5M2, 4), out.lse};
  }

  Tensor scale_s_ = make_scalar(device_, 448.0f);
  Tensor scale_p_ = make_scalar(device_, 2048.0f);
  Tensor scale_grad_ = make_scalar(device_, 2048.0f);
};

// Compared with the gradients of the same data without casts of P, dS or the results: the cast of P causes an error of
// 2^-4 / sqrt(3) of dV at most, the cast of dS 2^-3 / sqrt(3) of dQ and dK, the results' own 2^-3 / sqrt(3) of each.
// cuDNN casts dS times softmax_scale, which scale and amax take into account.
TEST_F(CudnnFloat8BackwardTest, IsWithinItsCastsOrRefuses) {
  if (!cuda::cudnn_unavailable_reason().empty()) {
    EXPECT_FALSE(cuda::attention_cudnn_float8_backward({}, context_));
    return;
  }
  for (const ShapeOptions& options :
       {ShapeOptions{.seq = 1024, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 128},
        {.seq = 1024, .batch = 1, .heads = 2, .kv_heads = 2, .head_dim = 128, .causal = false},
        {.seq = 1111, .batch = 2, .heads = 8, .kv_heads = 1, .head_dim = 128}}) {
    const AttentionShape shape = make_shape(options);
    SCOPED_TRACE(describe(shape, DType::kE4M3));
    const Step step = make_step(shape);
    const Gradients expected =
        backward(general_backward, shape, {step.qkv, step.o, step.grad_o, step.lse, {}, {}}, DType::kF32);
    const Tensor amax_s = make_scalar(device_, 0.0f), largest = make_scalar(device_, 0.0f);
    backward(general_backward, shape,
             {step.qkv, step.o, step.grad_o, step.lse, role(DType::kE4M3, scale_s_, amax_s),
              role(DType::kE5M2, scale_p_, largest)},
             DType::kF32);

    const Tensor amax_p = make_scalar(device_, 0.0f), amax_grad = make_scalar(device_, 0.0f);
    const Gradients actual =
        backward(cuda::attention_cudnn_float8_backward, shape,
                 {step.qkv, step.o, step.grad_o, step.lse, role(DType::kE4M3, scale_s_, amax_s),
                  role(DType::kE5M2, scale_p_, amax_p), role(DType::kE5M2, scale_grad_, amax_grad)},
                 DType::kBF16);
    EXPECT_LT(distance(actual.v, expected.v), (0x1p-4 + 0x1p-3) / 1.7);
    EXPECT_LT(distance(actual.q, expected.q), 2 * 0x1p-3 / 1.7);
    EXPECT_LT(distance(actual.k, expected.k), 2 * 0x1p-3 / 1.7);
    EXPECT_NEAR(device_.read(amax_p)[0], device_.read(largest)[0], 0x1p-4f * device_.read(largest)[0]);
    const float largest_gradient = amax_of({&expected.q, &expected.k, &expected.v});
    EXPECT_NEAR(device_.read(amax_grad)[0], largest_gradient, 0x1p-3f * largest_gradient);

    // The gradients are representable in eight bits, so the cast that follows changes nothing.
    for (const std::vector<float>* gradient : {&actual.q, &actual.k, &actual.v}) {
      std::vector<float> scaled = *gradient;
      for (float& x : scaled) x *= 2048.0f;
      EXPECT_EQ(device_.read(make_operand(device_, 128, DType::kE5M2, scaled).values), scaled);
    }
  }
}

// The casts of the results may change them by 2^-3, so their amax is tested more tightly on data for which it is exact.
// The last query and key are alike and larger than the rest, so the query's P is 1 there within e^-30, and that key,
// which no other query sees, has the query's dO for its dV. Everything else is small compared with it. Under the chosen
// scale the cast of that dV, 18816, gives 20480.
TEST_F(CudnnFloat8BackwardTest, MeasuresTheGradientsBeforeTheirCast) {
  if (const std::string reason = cuda::cudnn_unavailable_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const AttentionShape shape = make_shape({.seq = 512, .batch = 1, .heads = 2, .kv_heads = 2, .head_dim = 128});
  const std::int64_t cols = query_cols(shape), last = (shape.seq - 1) * cols;
  std::vector<float> q = gaussian(shape.seq * cols, 1), k = gaussian(shape.seq * cols, 2),
                     grad = gaussian(shape.seq * cols, 4, 0x1p-6f);
  std::fill(q.begin() + last, q.end(), 2.0f);
  std::fill(k.begin() + last, k.end(), 2.0f);
  grad[static_cast<std::size_t>(last)] = 1.75f;
  Step step{
      .qkv = {make_quantized(device_, cols, DType::kE4M3, q, 64.0f),
              make_quantized(device_, cols, DType::kE4M3, k, 64.0f), float8_operand(shape, cols, DType::kE4M3, 3)},
      .o = {},
      .grad_o = make_quantized(device_, cols, DType::kE5M2, grad, 8192.0f),
      .lse = {}};
  const AttentionOutputs out = make_outputs(shape, DType::kF32);
  ASSERT_TRUE(forward(general_forward, shape, step.qkv, out));
  step.o = make_quantized(device_, cols, DType::kE4M3, device_.read(out.o), 64.0f);
  step.lse = out.lse;
  const Gradients expected =
      backward(general_backward, shape, {step.qkv, step.o, step.grad_o, step.lse, {}, {}}, DType::kF32);
  ASSERT_NEAR(amax_of({&expected.q, &expected.k, &expected.v}), 1.75f, 0x1p-12f * 1.75f);

  context_.set_deterministic(false);
  const Tensor scale_grad = make_scalar(device_, 10752.0f), amax = make_scalar(device_, 0.0f),
               amax_grad = make_scalar(device_, 0.0f);
  const Tensor packed = make_tensor(device_, tokens(shape), 3 * cols, DType::kBF16);
  const AttentionGradients grads{packed.columns(0, cols), packed.columns(cols, cols), packed.columns(2 * cols, cols)};
  EXPECT_TRUE(attention_backward(device_, {.shape = shape,
                                           .q = step.qkv.q.view(),
                                           .k = step.qkv.k.view(),
                                           .v = step.qkv.v.view(),
                                           .o = step.o.view(),
                                           .grad_o = step.grad_o.view(),
                                           .lse = step.lse,
                                           .s = role(DType::kE4M3, scale_s_, amax),
                                           .grad_p = role(DType::kE5M2, scale_p_, amax),
                                           .grad_cast = role(DType::kE5M2, scale_grad, amax_grad),
                                           .out = grads}));
  EXPECT_NEAR(device_.read(amax_grad)[0], 1.75f, 0x1p-12f * 1.75f);
  const std::vector<float> rounded = device_.read(grads.v);
  EXPECT_GT(amax_of({&rounded}), 1.08f * 1.75f);  // the amax after the cast, which must not be recorded as dV's amax
}

// Amaxes are raised, never lowered, and a NaN stays.
TEST_F(CudnnFloat8BackwardTest, RaisesAmaxesAndKeepsNan) {
  if (const std::string reason = cuda::cudnn_unavailable_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const AttentionShape shape = make_shape({.seq = 512, .batch = 1, .heads = 2, .kv_heads = 2, .head_dim = 128});
  const Step step = make_step(shape);
  const Tensor amax_s = make_scalar(device_, 0.0f), high = make_scalar(device_, 1e6f),
               poisoned = make_scalar(device_, std::numeric_limits<float>::quiet_NaN());
  backward(cuda::attention_cudnn_float8_backward, shape,
           {step.qkv, step.o, step.grad_o, step.lse, role(DType::kE4M3, scale_s_, amax_s),
            role(DType::kE5M2, scale_p_, high), role(DType::kE5M2, scale_grad_, poisoned)},
           DType::kBF16);
  EXPECT_EQ(device_.read(high)[0], 1e6f);
  EXPECT_TRUE(std::isnan(device_.read(poisoned)[0]));
}

// The scale of tensors with hardly a value is FLT_MAX. cuDNN gets the scale of dS divided by softmax_scale, which must
// not make zeros NaN.
TEST_F(CudnnFloat8BackwardTest, ZerosStayZerosUnderTheLargestScale) {
  if (const std::string reason = cuda::cudnn_unavailable_reason(); !reason.empty()) GTEST_SKIP() << reason;
  const AttentionShape shape = make_shape({.seq = 512, .batch = 1, .heads = 2, .kv_heads = 2, .head_dim = 128});
  Step step = make_step(shape);
  const std::vector<float> zeros(static_cast<std::size_t>(tokens(shape) * query_cols(shape)));
  step.grad_o = make_quantized(device_, query_cols(shape), DType::kE5M2, zeros, 1.0f);
  const Tensor largest = make_scalar(device_, std::numeric_limits<float>::max()), amax_s = make_scalar(device_, 0.0f),
               amax_p = make_scalar(device_, 0.0f), amax_grad = make_scalar(device_, 0.0f);
  const Gradients actual = backward(cuda::attention_cudnn_float8_backward, shape,
                                    {step.qkv, step.o, step.grad_o, step.lse, role(DType::kE4M3, scale_s_, amax_s),
                                     role(DType::kE5M2, largest, amax_p), role(DType::kE5M2, scale_grad_, amax_grad)},
                                    DType::kBF16);
  EXPECT_EQ(actual.q, zeros);
  EXPECT_EQ(actual.k, zeros);
  EXPECT_EQ(actual.v, zeros);
  EXPECT_EQ(device_.read(amax_p)[0], 0.0f);
  EXPECT_EQ(device_.read(amax_grad)[0], 0.0f);
}

// Through the operation: cuDNN is used if bits may differ and the gradients' cast is known, and only then.
TEST_F(CudnnFloat8BackwardTest, IsChosenOnlyIfTheGradientsAreCastNext) {
  const AttentionShape shape = make_shape({.seq = 600, .batch = 1, .heads = 2, .kv_heads = 1, .head_dim = 128});
  const Step step = make_step(shape);
  const Tensor amax = make_scalar(device_, 0.0f);
  const auto algorithm_of = [&](bool deterministic, const AttentionRole& grad_cast) {
    context_.set_deterministic(deterministic);
    const std::size_t before = device_.notes().size();
    run_backward(device_, shape,
                 {step.qkv, step.o, step.grad_o, step.lse, role(DType::kE4M3, scale_s_, amax),
                  role(DType::kE5M2, scale_p_, amax), grad_cast},
                 DType::kBF16);
    const std::vector<std::string> notes = device_.notes();
    return notes.size() > before ? notes.back() : std::string("as before");
  };
  const AttentionRole cast = role(DType::kE5M2, scale_grad_, amax);
  EXPECT_EQ(algorithm_of(true, cast), "attention backward: own matrix-unit kernel");
  EXPECT_EQ(algorithm_of(false, {}), "as before");
  EXPECT_EQ(algorithm_of(false, cast),
            cuda::cudnn_unavailable_reason().empty() ? "attention backward: cuDNN in FP8" : "as before");
}

}  // namespace
}  // namespace fp8lab::attention_test

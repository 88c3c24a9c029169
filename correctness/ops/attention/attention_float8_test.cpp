#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "core/float8.h"
#include "ops/attention/attention_fixture.h"
#include "reference/compare.h"

namespace fp8lab::attention_test {
namespace {

const reference::SmallFloat& e4m3() {
  static const reference::SmallFloat format(reference::kE4M3Layout);
  return format;
}
const reference::SmallFloat& e5m2() {
  static const reference::SmallFloat format(reference::kE5M2Layout);
  return format;
}

float amax_of(const std::vector<float>& values) {
  float amax = 0;
  for (const float x : values) amax = std::max(amax, std::fabs(x));
  return amax;
}

/// A scale and an amax on the device, and the same role for the reference.
struct Role {
  AttentionRole kernel;
  reference::AttentionCast cast;
  Tensor scale;
  Tensor amax;

  Role(Device& device, DType dtype, float scale_value, float amax_value = 0.0f)
      : cast{dtype == DType::kE4M3 ? &e4m3() : &e5m2(), static_cast<double>(scale_value)},
        scale(make_scalar(device, scale_value)),
        amax(make_scalar(device, amax_value)) {
    kernel = {.dtype = dtype, .scale = scale.data<float>(), .amax = amax.data<float>()};
  }
};

/// Values before and after their cast to FP8.
struct Quantized {
  std::vector<float> exact;
  Operand operand;

  Quantized(Device& device, std::int64_t cols, DType dtype, std::vector<float> values)
      : exact(std::move(values)),
        operand(make_quantized(device, cols, dtype, exact, fp8_max(dtype) / amax_of(exact))) {}
  static float fp8_max(DType dtype) { return dtype == DType::kE4M3 ? E4M3::kMax : E5M2::kMax; }
  std::vector<double> exact_values() const { return {exact.begin(), exact.end()}; }
};

struct Float8Step {
  Quantized q;
  Quantized k;
  Quantized v;
  Quantized grad_o;

  Float8Step(Device& device, const AttentionShape& shape)
      : q(device, query_cols(shape), DType::kE4M3, gaussian(tokens(shape) * query_cols(shape), 1)),
        k(device, key_cols(shape), DType::kE4M3, gaussian(tokens(shape) * key_cols(shape), 2)),
        v(device, key_cols(shape), DType::kE4M3, gaussian(tokens(shape) * key_cols(shape), 3)),
        grad_o(device, query_cols(shape), DType::kE5M2, gaussian(tokens(shape) * query_cols(shape), 4)) {}
  Qkv qkv() const { return {q.operand, k.operand, v.operand}; }
};

struct Float8Case {
  AttentionShape shape;
  float s_scale = 448.0f;
  bool o_in_eight_bits = false;
};

std::vector<Float8Case> float8_cases() {
  const ShapeOptions shapes[] = {
      {.seq = 1, .batch = 1, .heads = 2, .kv_heads = 1, .head_dim = 16},
      {.seq = 37, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 16},
      {.seq = 100, .batch = 1, .heads = 2, .kv_heads = 2, .head_dim = 64},
      {.seq = 129, .batch = 1, .heads = 2, .kv_heads = 1, .head_dim = 128},
  };
  std::vector<Float8Case> cases;
  for (ShapeOptions options : shapes)
    for (const auto& [causal, window] : kMasks)
      for (const float dropout : {0.0f, 0.25f}) {
        if (window == 1) continue;  // P is 1 and dS is the rounding of 0, which is always near a tie
        options.causal = causal;
        options.window = window;
        options.dropout = dropout;
        // The second scale is no power of two and, with dropout, saturates: 448 / 500 < 1 / (1 - p).
        cases.push_back({make_shape(options), 448.0f, false});
        cases.push_back({make_shape(options), 500.0f, true});
      }
  return cases;
}

class AttentionFloat8Test : public AttentionTest, public ::testing::WithParamInterface<Float8Case> {
 protected:
  // A fraction 2 * error / quantum of casts at random places lies near a tie. The reference allows P an error of up to
  // 2^-12, and the quantum of E4M3 is at least 2^-4: 0.8 %. So few elements have a bound that could hide a wrong cast.
  static constexpr double kFewTies = 0.01;
};

TEST_P(AttentionFloat8Test, EmulatesTheCastsOfEveryRole) {
  const auto [shape, s_scale, o_in_eight_bits] = GetParam();
  const Float8Step step(device_, shape);
  const Role s(device_, DType::kE4M3, s_scale);
  const reference::AttentionProblem problem = reference_problem(shape);
  const auto inputs = reference_inputs(device_, step.qkv(), s.cast);

  const AttentionOutputs out = run_forward(device_, shape, step.qkv(), DType::kF32, s.kernel);
  const auto expected = reference::attention_forward(problem, inputs);
  EXPECT_LE(expected.casts_near_a_tie, kFewTies);
  EXPECT_TRUE(within(device_.read(out.o), expected.o));
  EXPECT_TRUE(within(device_.read(out.lse), expected.lse));
  EXPECT_NEAR(static_cast<double>(device_.read(s.amax)[0]), expected.amax_s, 1e-4 * expected.amax_s);

  const Operand o = o_in_eight_bits ? Quantized(device_, query_cols(shape), DType::kE4M3, device_.read(out.o)).operand
                                    : make_operand(device_, query_cols(shape), DType::kBF16, device_.read(out.o));
  const std::vector<double> o_values = read(device_, o), grad_o = read(device_, step.grad_o.operand);
  // Delayed scaling would have measured about this amax in the step before.
  const double amax = reference::attention_backward(problem, inputs, o_values, grad_o).amax_grad_p;
  const Role grad_p(device_, DType::kE5M2, amax > 0 ? static_cast<float>(57344.0 / amax) : 1.0f);
  const AttentionGradients grads =
      run_backward(device_, shape, {step.qkv(), o, step.grad_o.operand, out.lse, s.kernel, grad_p.kernel}, DType::kF32);
  const auto expected_grads = reference::attention_backward(problem, inputs, o_values, grad_o, grad_p.cast);
  EXPECT_LE(expected_grads.casts_near_a_tie, kFewTies);
  EXPECT_TRUE(within(device_.read(grads.q), expected_grads.grad_q));
  EXPECT_TRUE(within(device_.read(grads.k), expected_grads.grad_k));
  EXPECT_TRUE(within(device_.read(grads.v), expected_grads.grad_v));
  EXPECT_NEAR(static_cast<double>(device_.read(grad_p.amax)[0]), expected_grads.amax_grad_p, 1e-4 * amax);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionFloat8Test, ::testing::ValuesIn(float8_cases()), [](const auto& row) {
  return describe(row.param.shape, DType::kE4M3) + (row.param.o_in_eight_bits ? "_o8" : "_o16");
});

// Errors in the roles that leave O nearly right must be outside the emulation's bound.
TEST_F(AttentionTest, Float8BoundCatchesMutations) {
  const AttentionShape shape = make_shape({.seq = 100, .heads = 2, .kv_heads = 1, .head_dim = 64});
  const Float8Step step(device_, shape);
  const Role s(device_, DType::kE4M3, 448.0f);
  const auto problem = reference_problem(shape);
  const auto inputs = reference_inputs(device_, step.qkv(), s.cast);
  const auto expected = reference::attention_forward(problem, inputs);
  const auto forward_matches = [&](const AttentionRole& role) {
    return within(device_.read(run_forward(device_, shape, step.qkv(), DType::kF32, role).o), expected.o);
  };
  ASSERT_TRUE(forward_matches(s.kernel));
  EXPECT_FALSE(forward_matches({})) << "P not cast";
  EXPECT_FALSE(forward_matches(Role(device_, DType::kE5M2, 448.0f).kernel)) << "P in E5M2";
  EXPECT_FALSE(forward_matches(Role(device_, DType::kE4M3, 400.0f).kernel)) << "another scale";

  const AttentionOutputs out = run_forward(device_, shape, step.qkv(), DType::kF32, s.kernel);
  const Operand o{out.o, {}};
  const std::vector<double> grad_o = read(device_, step.grad_o.operand);
  const Role grad_p(device_, DType::kE5M2, 4096.0f);
  const auto expected_grads = reference::attention_backward(problem, inputs, read(device_, o), grad_o, grad_p.cast);
  const auto backward_matches = [&](const AttentionRole& s_role, const AttentionRole& grad_p_role) {
    const AttentionGradients grads =
        run_backward(device_, shape, {step.qkv(), o, step.grad_o.operand, out.lse, s_role, grad_p_role}, DType::kF32);
    return within(device_.read(grads.q), expected_grads.grad_q) &&
           within(device_.read(grads.k), expected_grads.grad_k) && within(device_.read(grads.v), expected_grads.grad_v);
  };
  ASSERT_TRUE(backward_matches(s.kernel, grad_p.kernel));
  EXPECT_FALSE(backward_matches({}, grad_p.kernel)) << "P not cast for dV";
  EXPECT_FALSE(backward_matches(Role(device_, DType::kE4M3, 400.0f).kernel, grad_p.kernel))
      << "the scale moved since forward";
  EXPECT_FALSE(backward_matches(s.kernel, {})) << "dS not cast";
  EXPECT_FALSE(backward_matches(s.kernel, Role(device_, DType::kE4M3, 4096.0f).kernel)) << "dS in E4M3";
}

// The cost of the casts, compared with the same attention of the values before any cast. For Gaussian values one E4M3
// cast leaves 31.5 dB (noise 7.1e-4 of the signal), one E5M2 cast 25.5 dB (2.8e-3). Independent noises add up; Q and K
// each reach P through logits of variance 1:
//   O:       Q, K, P, V                     4 * 7.1e-4 = 2.8e-3            25.5 dB
//   dV:      Q, K, P; dO                    3 * 7.1e-4 + 2.8e-3 = 4.9e-3   23.1 dB
//   dQ, dK:  Q, K in P, K or Q, V; dO, dS   4 * 7.1e-4 + 2 * 2.8e-3 = 8.5e-3   20.7 dB
// dQ and dK have no more noise because D is small compared with dP if many keys share P. One decibel on either side is
// more than 3 standard deviations of these samples, and less than leaving out the cast of P or dS would gain.
TEST_F(AttentionTest, Float8NoiseIsThatOfItsCasts) {
  const AttentionShape shape = make_shape({.seq = 256, .heads = 4, .kv_heads = 4, .head_dim = 64, .causal = false});
  const Float8Step step(device_, shape);
  const Role s(device_, DType::kE4M3, 448.0f);
  const auto problem = reference_problem(shape);
  const reference::AttentionInputsReference exact = {
      step.q.exact_values(), step.k.exact_values(), step.v.exact_values(), {}};
  const auto expected = reference::attention_forward(problem, exact);
  const AttentionOutputs out = run_forward(device_, shape, step.qkv(), DType::kF32, s.kernel);
  const double o_db = reference::sqnr_db(expected.o.value, device_.read(out.o));
  RecordProperty("o_db", std::to_string(o_db));
  EXPECT_GT(o_db, 24.5);
  EXPECT_LT(o_db, 26.5);
  EXPECT_GT(reference::sqnr_db(expected.o.value, device_.read(run_forward(device_, shape, step.qkv(), DType::kF32).o)),
            26.5)
      << "P not cast";

  const auto expected_grads =
      reference::attention_backward(problem, exact, expected.o.value, step.grad_o.exact_values());
  const Role grad_p(device_, DType::kE5M2, static_cast<float>(57344.0 / expected_grads.amax_grad_p));
  const AttentionGradients grads = run_backward(
      device_, shape, {step.qkv(), {out.o, {}}, step.grad_o.operand, out.lse, s.kernel, grad_p.kernel}, DType::kF32);
  const double q_db = reference::sqnr_db(expected_grads.grad_q.value, device_.read(grads.q));
  const double k_db = reference::sqnr_db(expected_grads.grad_k.value, device_.read(grads.k));
  const double v_db = reference::sqnr_db(expected_grads.grad_v.value, device_.read(grads.v));
  RecordProperty("grad_db", std::to_string(q_db) + " " + std::to_string(k_db) + " " + std::to_string(v_db));
  EXPECT_GT(v_db, 22.1);
  EXPECT_LT(v_db, 24.1);
  for (const double db : {q_db, k_db}) {
    EXPECT_GT(db, 19.7);
    EXPECT_LT(db, 21.7);
  }
  const AttentionGradients uncast =
      run_backward(device_, shape, {step.qkv(), {out.o, {}}, step.grad_o.operand, out.lse, s.kernel, {}}, DType::kF32);
  EXPECT_GT(reference::sqnr_db(expected_grads.grad_q.value, device_.read(uncast.q)), 21.7) << "dS not cast";
}

/// Gaussian values whose largest magnitude is `amax`, cast under the scale that follows from it.
Operand of_amax(Device& device, std::int64_t count, std::int64_t cols, DType dtype, std::uint64_t stream, double amax) {
  std::vector<float> values = gaussian(count, stream);
  const double factor = amax / static_cast<double>(amax_of(values));
  for (float& x : values) x = static_cast<float>(static_cast<double>(x) * factor);
  return make_quantized(device, cols, dtype, values,
                        static_cast<float>(static_cast<double>(Quantized::fp8_max(dtype)) / amax));
}

class TinyOperandsTest : public AttentionTest,
                         public ::testing::WithParamInterface<std::tuple<double, bool, std::int64_t>> {};

// Q, K and V have one scale whose square times softmax_scale is below the normal floats or below all floats: every
// logit is nearly zero and P is one over the number of keys, which is 2^-12 or more away from a tie of the cast. dO is
// so large that dQ and dK have ordinary sizes, so nothing else comes near a float's limits. Without roles the matrix
// units round P and dS to bf16.
TEST_P(TinyOperandsTest, GiveEveryKeyTheSameWeight) {
  const auto [amax, causal, head_dim] = GetParam();
  const AttentionShape shape =
      make_shape({.seq = 100, .batch = 1, .heads = 4, .kv_heads = 2, .head_dim = head_dim, .causal = causal});
  const std::int64_t queries = tokens(shape) * query_cols(shape), keys = tokens(shape) * key_cols(shape);
  const Qkv qkv = {of_amax(device_, queries, query_cols(shape), DType::kE4M3, 1, amax),
                   of_amax(device_, keys, key_cols(shape), DType::kE4M3, 2, amax),
                   of_amax(device_, keys, key_cols(shape), DType::kE4M3, 3, amax)};
  const Operand grad_o = of_amax(device_, queries, query_cols(shape), DType::kE5M2, 4, 0x1p20 / amax);
  const std::vector<double> grad_o_values = read(device_, grad_o);
  for (const bool casts : {true, false}) {
    SCOPED_TRACE(casts ? "cast" : "not cast");
    const reference::AttentionProblem problem = reference_problem(shape, casts ? DType::kE4M3 : DType::kBF16);
    const Role s(device_, DType::kE4M3, 448.0f);
    const auto inputs = reference_inputs(device_, qkv, casts ? s.cast : reference::AttentionCast{});
    const AttentionOutputs out = run_forward(device_, shape, qkv, DType::kF32, casts ? s.kernel : AttentionRole{});
    const auto expected = reference::attention_forward(problem, inputs);
    EXPECT_TRUE(within(device_.read(out.o), expected.o));
    EXPECT_TRUE(within(device_.read(out.lse), expected.lse));

    const Operand o = make_operand(device_, query_cols(shape), DType::kBF16, device_.read(out.o));
    const double largest = reference::attention_backward(problem, inputs, read(device_, o), grad_o_values).amax_grad_p;
    const Role grad_p(device_, DType::kE5M2, static_cast<float>(57344.0 / largest));
    const AttentionRole none;
    const AttentionGradients grads = run_backward(
        device_, shape, {qkv, o, grad_o, out.lse, casts ? s.kernel : none, casts ? grad_p.kernel : none}, DType::kF32);
    const auto expected_grads = reference::attention_backward(problem, inputs, read(device_, o), grad_o_values,
                                                              casts ? grad_p.cast : reference::AttentionCast{});
    EXPECT_TRUE(within(device_.read(grads.q), expected_grads.grad_q));
    EXPECT_TRUE(within(device_.read(grads.k), expected_grads.grad_k));
    EXPECT_TRUE(within(device_.read(grads.v), expected_grads.grad_v));
    // The bounds refuse gradients that have vanished.
    for (const reference::Bounded* gradient : {&expected_grads.grad_q, &expected_grads.grad_k, &expected_grads.grad_v})
      EXPECT_FALSE(within(std::vector<float>(gradient->value.size()), *gradient));
  }
}

INSTANTIATE_TEST_SUITE_P(Amaxes, TinyOperandsTest,
                         ::testing::Combine(::testing::Values(4e-17, 4e-21, 1e-30), ::testing::Bool(),
                                            ::testing::Values<std::int64_t>(64, 128)),
                         [](const auto& row) {
                           const double amax = std::get<0>(row.param);
                           return std::string(amax == 4e-17   ? "A4em17"
                                              : amax == 4e-21 ? "A4em21"
                                                              : "A1em30") +
                                  (std::get<1>(row.param) ? "_causal" : "_full") + "_d" +
                                  std::to_string(std::get<2>(row.param));
                         });

// The largest possible scale times the unit of dP is above every float; masked entries must stay zero. K is large and Q
// small, so that dQ, whose scale is the inverse of that one, is no subnormal; dK is nearly zero.
TEST_F(AttentionTest, LargestScaleLeavesZerosZero) {
  const AttentionShape shape = make_shape({.seq = 100, .heads = 2, .kv_heads = 1, .head_dim = 64});
  const std::int64_t queries = tokens(shape) * query_cols(shape), keys = tokens(shape) * key_cols(shape);
  const Qkv qkv = {of_amax(device_, queries, query_cols(shape), DType::kE4M3, 1, 0x1p-40),
                   of_amax(device_, keys, key_cols(shape), DType::kE4M3, 2, 0x1p42),
                   of_amax(device_, keys, key_cols(shape), DType::kE4M3, 3, 4.0)};
  const Operand grad_o = of_amax(device_, queries, query_cols(shape), DType::kE5M2, 4, 0x1p40);
  const Role s(device_, DType::kE4M3, 448.0f), grad_p(device_, DType::kE5M2, kFloatMax);
  const auto inputs = reference_inputs(device_, qkv, s.cast);
  const AttentionOutputs out = run_forward(device_, shape, qkv, DType::kF32, s.kernel);
  const AttentionGradients grads =
      run_backward(device_, shape, {qkv, {out.o, {}}, grad_o, out.lse, s.kernel, grad_p.kernel}, DType::kF32);
  const auto expected = reference::attention_backward(reference_problem(shape), inputs, read(device_, {out.o, {}}),
                                                      read(device_, grad_o), grad_p.cast);
  EXPECT_TRUE(within(device_.read(grads.q), expected.grad_q));
  EXPECT_TRUE(within(device_.read(grads.k), expected.grad_k));
  EXPECT_TRUE(within(device_.read(grads.v), expected.grad_v));
}

// E4M3 has no value between 0 and 2^-9 and rounds up to half of that to 0. At scale 1 the even weights of more than
// 1024 keys become 0, and the weights of slightly fewer keys are doubled.
TEST_F(AttentionTest, SmallProbabilitiesBecomeZeroWithoutAScale) {
  for (const auto& [seq, scale, expected] :
       {std::tuple{1100, 1.0f, 0.0f}, {1000, 1.0f, 1000.0f / 512.0f}, {1024, 448.0f, 1.0f}}) {
    const AttentionShape shape = make_shape({.seq = seq, .head_dim = 8, .causal = false});
    const std::vector<float> ones(static_cast<std::size_t>(seq) * 8, 1.0f), zeros(ones.size(), 0.0f);
    const Qkv qkv = {make_quantized(device_, 8, DType::kE4M3, zeros, 1.0f),
                     make_quantized(device_, 8, DType::kE4M3, ones, 1.0f),
                     make_quantized(device_, 8, DType::kE4M3, ones, 1.0f)};
    const Role s(device_, DType::kE4M3, scale);
    for (const float o : device_.read(run_forward(device_, shape, qkv, DType::kF32, s.kernel).o))
      EXPECT_FLOAT_EQ(o, expected) << "seq " << seq << ", scale " << scale;
  }
}

TEST_F(AttentionTest, RolesAccumulateTheirAmax) {
  const AttentionShape shape = make_shape({.seq = 20, .head_dim = 16});
  const Float8Step step(device_, shape);
  const Role fresh(device_, DType::kE4M3, 448.0f), raised(device_, DType::kE4M3, 448.0f, 5.0f);
  const Role poisoned(device_, DType::kE4M3, 448.0f, std::numeric_limits<float>::quiet_NaN());
  for (const Role* role : {&fresh, &raised, &poisoned})
    run_forward(device_, shape, step.qkv(), DType::kBF16, role->kernel);
  EXPECT_NEAR(device_.read(fresh.amax)[0], 1.0f, 1e-6f);  // the first query sees one key
  EXPECT_EQ(device_.read(raised.amax)[0], 5.0f);
  EXPECT_TRUE(std::isnan(device_.read(poisoned.amax)[0]));

  // A NaN in the operands reaches the amax of both roles.
  std::vector<float> with_nan(static_cast<std::size_t>(20 * 16), 0.5f);
  with_nan[40] = std::numeric_limits<float>::quiet_NaN();
  const Operand q = make_quantized(device_, 16, DType::kE4M3, with_nan, 1.0f);
  const Role s(device_, DType::kE4M3, 448.0f), grad_p(device_, DType::kE5M2, 1.0f);
  const Qkv qkv = {q, step.k.operand, step.v.operand};
  const AttentionOutputs out = run_forward(device_, shape, qkv, DType::kBF16, s.kernel);
  EXPECT_TRUE(std::isnan(device_.read(s.amax)[0]));
  run_backward(device_, shape, {qkv, {out.o, {}}, step.grad_o.operand, out.lse, s.kernel, grad_p.kernel}, DType::kBF16);
  EXPECT_TRUE(std::isnan(device_.read(grad_p.amax)[0]));
}

// O and the gradients are stored before their casts, so their amaxes are left to the cast.
TEST_F(AttentionTest, ResultsThatAreCastLaterAreNotMeasured) {
  const AttentionShape shape = make_shape({.seq = 20, .heads = 2, .kv_heads = 1, .head_dim = 64});
  const Float8Step step(device_, shape);
  const Role s(device_, DType::kE4M3, 448.0f), grad_p(device_, DType::kE5M2, 1024.0f);
  const Role o_cast(device_, DType::kE4M3, 100.0f), grad_cast(device_, DType::kE5M2, 1024.0f);
  const AttentionOutputs out = attention_forward(device_, {.shape = shape,
                                                           .q = step.q.operand.view(),
                                                           .k = step.k.operand.view(),
                                                           .v = step.v.operand.view(),
                                                           .s = s.kernel,
                                                           .o_cast = o_cast.kernel});
  EXPECT_FALSE(out.o_measured);
  EXPECT_EQ(device_.read(o_cast.amax)[0], 0.0f);
  const AttentionGradients grads{make_tensor(device_, 20, query_cols(shape), DType::kBF16),
                                 make_tensor(device_, 20, key_cols(shape), DType::kBF16),
                                 make_tensor(device_, 20, key_cols(shape), DType::kBF16)};
  EXPECT_FALSE(attention_backward(device_, {.shape = shape,
                                            .q = step.q.operand.view(),
                                            .k = step.k.operand.view(),
                                            .v = step.v.operand.view(),
                                            .o = out.o.operand(),
                                            .grad_o = step.grad_o.operand.view(),
                                            .lse = out.lse,
                                            .s = s.kernel,
                                            .grad_p = grad_p.kernel,
                                            .grad_cast = grad_cast.kernel,
                                            .out = grads}));
  EXPECT_EQ(device_.read(grad_cast.amax)[0], 0.0f);
}

}  // namespace
}  // namespace fp8lab::attention_test

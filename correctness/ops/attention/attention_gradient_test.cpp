#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "ops/attention/attention_fixture.h"

namespace fp8lab::attention_test {
namespace {

struct Gradients {
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
};

struct Step {
  Qkv qkv;
  AttentionOutputs out;
  Operand grad_o;
};

Step make_step(Device& device, const AttentionShape& shape, DType dtype) {
  Step step;
  step.qkv = make_qkv(device, shape, dtype);
  step.out = run_forward(device, shape, step.qkv, dtype);
  step.grad_o = make_operand(device, query_cols(shape), dtype, gaussian(tokens(shape) * query_cols(shape), 2));
  return step;
}

Gradients backward(Device& device, const AttentionShape& shape, const Step& step, const Tensor& lse) {
  const AttentionGradients grads =
      run_backward(device, shape, {step.qkv, {step.out.o, {}}, step.grad_o, lse, {}, {}}, step.out.o.dtype());
  return {device.read(grads.q), device.read(grads.k), device.read(grads.v)};
}
Gradients backward(Device& device, const AttentionShape& shape, const Step& step) {
  return backward(device, shape, step, step.out.lse);
}

reference::AttentionBackwardReference expected_gradients(Device& device, const AttentionShape& shape,
                                                         const Step& step) {
  return reference::attention_backward(reference_problem(shape, step.qkv.q.values.dtype()),
                                       reference_inputs(device, step.qkv), read(device, {step.out.o, {}}),
                                       read(device, step.grad_o));
}

// Central differences of the reference's loss sum(grad_o * O) for every coordinate of `input`, a member of `inputs`.
std::vector<double> finite_differences(const reference::AttentionProblem& problem,
                                       reference::AttentionInputsReference& inputs, std::vector<double>& input,
                                       const std::vector<double>& grad_o) {
  // The truncation error is h^2 / 6 times a third derivative of order 10, the cancellation error 2^-53 / h times a loss
  // of order 100.
  constexpr double kStep = 1e-5;
  const auto loss = [&] {
    const std::vector<double> o = reference::attention_forward(problem, inputs).o.value;
    double sum = 0;
    for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * grad_o[i];
    return sum;
  };
  std::vector<double> differences;
  for (double& x : input) {
    const double centre = x;
    x = centre + kStep;
    const double above = loss();
    x = centre - kStep;
    differences.push_back((above - loss()) / (2 * kStep));
    x = centre;
  }
  return differences;
}
constexpr double kDifferenceError = 1e-8;

std::vector<AttentionShape> small_shapes() {
  std::vector<AttentionShape> shapes;
  const ShapeOptions sizes[] = {{.seq = 6, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 3},
                                {.seq = 5, .batch = 1, .heads = 2, .kv_heads = 2, .head_dim = 4}};
  for (ShapeOptions options : sizes)
    for (const auto& [causal, window] : {Mask{true, 0}, Mask{false, 0}, Mask{true, 3}})
      for (const float dropout : {0.0f, 0.3f}) {
        options.causal = causal;
        options.window = window;
        options.dropout = dropout;
        shapes.push_back(make_shape(options));
      }
  return shapes;
}

class AttentionDifferencesTest : public AttentionTest, public ::testing::WithParamInterface<AttentionShape> {};

TEST_P(AttentionDifferencesTest, GradientsEqualDifferencesOfTheDefinition) {
  const AttentionShape shape = GetParam();
  const Step step = make_step(device_, shape, DType::kF32);
  const Gradients actual = backward(device_, shape, step);
  reference::AttentionBackwardReference expected = expected_gradients(device_, shape, step);

  const auto problem = reference_problem(shape);
  auto inputs = reference_inputs(device_, step.qkv);
  const std::vector<double> grad_o = read(device_, step.grad_o);
  // The differences replace the reference's formulas; its error bounds stay, with the error of the differences added.
  const auto check = [&](const std::vector<float>& gradient, reference::Bounded& bounded, std::vector<double>& input) {
    bounded.value = finite_differences(problem, inputs, input, grad_o);
    for (double& error : bounded.error) error += kDifferenceError;
    EXPECT_TRUE(within(gradient, bounded));
  };
  check(actual.q, expected.grad_q, inputs.q);
  check(actual.k, expected.grad_k, inputs.k);
  check(actual.v, expected.grad_v, inputs.v);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionDifferencesTest, ::testing::ValuesIn(small_shapes()),
                         [](const auto& row) { return describe(row.param); });

struct GradientCase {
  AttentionShape shape;
  DType dtype = DType::kF32;
};

std::vector<GradientCase> gradient_cases() {
  const ShapeOptions shapes[] = {
      {.seq = 1, .batch = 2, .heads = 2, .kv_heads = 1, .head_dim = 8},
      {.seq = 33, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 5},
      {.seq = 65, .batch = 2, .heads = 4, .kv_heads = 4, .head_dim = 64},
      {.seq = 130, .batch = 1, .heads = 3, .kv_heads = 1, .head_dim = 128},
  };
  std::vector<GradientCase> cases;
  for (ShapeOptions options : shapes)
    for (const auto& [causal, window] : kMasks)
      for (const float dropout : {0.0f, 0.25f})
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          options.causal = causal;
          options.window = window;
          options.dropout = dropout;
          cases.push_back({make_shape(options), dtype});
        }
  return cases;
}

class AttentionGradientTest : public AttentionTest, public ::testing::WithParamInterface<GradientCase> {};

TEST_P(AttentionGradientTest, MatchesTheDefinition) {
  const auto [shape, dtype] = GetParam();
  const Step step = make_step(device_, shape, dtype);
  const Gradients actual = backward(device_, shape, step);
  const auto expected = expected_gradients(device_, shape, step);
  EXPECT_TRUE(within(actual.q, expected.grad_q, dtype));
  EXPECT_TRUE(within(actual.k, expected.grad_k, dtype));
  EXPECT_TRUE(within(actual.v, expected.grad_v, dtype));
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionGradientTest, ::testing::ValuesIn(gradient_cases()),
                         [](const auto& row) { return describe(row.param.shape, row.param.dtype); });

// Each is an error that an implementation could make; some gradient must leave its bound.
TEST_F(AttentionTest, GradientBoundCatchesMutations) {
  const AttentionShape shape =
      make_shape({.seq = 65, .batch = 2, .heads = 4, .kv_heads = 2, .head_dim = 64, .dropout = 0.25f});
  const Step step = make_step(device_, shape, DType::kBF16);
  const auto expected = expected_gradients(device_, shape, step);
  const auto matches = [&](const AttentionShape& mutated, const Step& operands, const Tensor& lse) {
    const Gradients actual = backward(device_, mutated, operands, lse);
    return within(actual.q, expected.grad_q, DType::kBF16) && within(actual.k, expected.grad_k, DType::kBF16) &&
           within(actual.v, expected.grad_v, DType::kBF16);
  };
  ASSERT_TRUE(matches(shape, step, step.out.lse));

  AttentionShape mutated = shape;
  mutated.causal = false;
  EXPECT_FALSE(matches(mutated, step, step.out.lse)) << "no causal mask";
  mutated = shape;
  mutated.window = 64;
  EXPECT_FALSE(matches(mutated, step, step.out.lse)) << "the last query does not see the first key";
  mutated = shape;
  mutated.softmax_scale = 1.0f;
  EXPECT_FALSE(matches(mutated, step, run_forward(device_, mutated, step.qkv, DType::kBF16).lse)) << "no softmax_scale";
  mutated = shape;
  mutated.stream += 1;
  EXPECT_FALSE(matches(mutated, step, step.out.lse)) << "another dropout mask";

  Step changed = step;
  changed.qkv.q =
      make_operand(device_, query_cols(shape), DType::kBF16, gaussian(tokens(shape) * query_cols(shape), 9));
  const Tensor stale = run_forward(device_, shape, changed.qkv, DType::kBF16).lse;
  EXPECT_FALSE(matches(shape, step, stale)) << "lse of other logits";

  std::vector<float> unnormalised = device_.read(step.out.lse);
  for (float& lse : unnormalised) lse -= 0.05f;
  const Tensor shifted = device_.allocate(step.out.lse.spec(), step.out.lse.buffer().holder());
  device_.write(shifted, unnormalised);
  EXPECT_FALSE(matches(shape, step, shifted)) << "rows of P that add up to 1.05";

  changed = step;
  changed.out.o = make_operand(device_, query_cols(shape), DType::kBF16, std::vector<float>(step.out.o.numel())).values;
  EXPECT_FALSE(matches(shape, changed, step.out.lse)) << "rowsum(dO * O) left out";
  changed = step;
  std::swap(changed.qkv.k, changed.qkv.v);
  EXPECT_FALSE(matches(shape, changed, step.out.lse)) << "K and V exchanged";

  const std::vector<float> zeros(static_cast<std::size_t>(tokens(shape) * query_cols(shape)));
  EXPECT_FALSE(within(zeros, expected.grad_q, DType::kBF16)) << "zero gradient";
}

}  // namespace
}  // namespace fp8lab::attention_test

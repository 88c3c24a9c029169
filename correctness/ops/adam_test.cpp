#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/elementwise.h"
#include "reference/dense_reference.h"
#include "reference/test_data.h"
#include "support/dense.h"

// The Adam kernel, step by step; optim/ tests the optimizer around it.
namespace fp8lab {
namespace {

using reference::AdamExpected;
using reference::Expected;
using reference::Values;
using support::make_tensor;
using support::read;

struct AdamCase {
  const char* label;
  DType param;
  DType grad;
  bool master;
  bool decoupled;
  float weight_decay;
};

class Adam : public ::testing::TestWithParam<AdamCase> {
 protected:
  static constexpr std::int64_t kRows = 5, kCols = 811;  // more than one iteration of the kernel's loop
  static constexpr std::size_t kCount = kRows * kCols;

  Tensor filled(DType dtype, float value) {
    return make_tensor(*device_, {kRows, kCols}, dtype, std::vector<float>(kCount, value));
  }
  Tensor gaussian(DType dtype, std::uint64_t seed, double deviation) {
    return make_tensor(*device_, {kRows, kCols}, dtype, reference::gaussian_values(kCount, seed, deviation));
  }
  AdamArgs args(int step, std::span<const AdamTensor> tensors) const {
    const auto correction = [&](double beta) { return static_cast<float>(1.0 - std::pow(beta, step)); };
    return {.tensors = tensors,
            .learning_rate = kLearningRate,
            .exp_avg_weight = static_cast<float>(1.0 - kBeta1),
            .exp_avg_sq_weight = static_cast<float>(1.0 - kBeta2),
            .epsilon = kEpsilon,
            .weight_decay = c_.weight_decay,
            .decoupled_decay = c_.decoupled,
            .bias_correction1 = correction(kBeta1),
            .bias_correction2 = correction(kBeta2)};
  }
  reference::AdamProblem problem(int step) const {
    return {.learning_rate = double{kLearningRate},
            .beta1 = kBeta1,
            .beta2 = kBeta2,
            .epsilon = double{kEpsilon},
            .weight_decay = double{c_.weight_decay},
            .decoupled_decay = c_.decoupled,
            .step = step};
  }

  static constexpr float kLearningRate = 0.01f, kEpsilon = 1e-8f;
  static constexpr double kBeta1 = 0.9, kBeta2 = 0.95;
  const AdamCase c_ = GetParam();
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Tensor param_ = gaussian(c_.param, 1, 1.0);
  Tensor exp_avg_ = filled(DType::kF32, 0.0f);
  Tensor exp_avg_sq_ = filled(DType::kF32, 0.0f);
  Tensor master_ = c_.master ? make_tensor(*device_, {kRows, kCols}, DType::kF32, device_->read(param_)) : Tensor{};
};

// Each step is judged from the state that the kernel itself left, so errors do not add up.
TEST_P(Adam, EachStepIsWithinTheBoundOfItsRoundings) {
  for (int step = 1; step <= 4; ++step) {
    const Tensor grad = gaussian(c_.grad, static_cast<std::uint64_t>(10 + step), 0.1);
    const Tensor& optimised = c_.master ? master_ : param_;
    const AdamExpected expected = reference::adam(
        problem(step), {read(*device_, optimised), read(*device_, exp_avg_), read(*device_, exp_avg_sq_)},
        read(*device_, grad));
    const AdamTensor tensor{.param = param_.view(),
                            .grad = grad.view(),
                            .exp_avg = exp_avg_.view(),
                            .exp_avg_sq = exp_avg_sq_.view(),
                            .master = c_.master ? master_.view() : MatrixView{}};
    device_->launch(&KernelTable::adam, args(step, {&tensor, 1}));

    SCOPED_TRACE(testing::Message() << "step " << step);
    EXPECT_TRUE(all_within(read(*device_, optimised), rounded_to(optimised.dtype(), expected.param)));
    for (const auto& [tensor_of, moment] :
         {std::pair{exp_avg_, expected.exp_avg}, {exp_avg_sq_, expected.exp_avg_sq}}) {
      EXPECT_TRUE(all_within(read(*device_, tensor_of), rounded_to(DType::kF32, moment)));
      EXPECT_TRUE(refuses_mutations(rounded_to(DType::kF32, moment)));
    }
    if (c_.master) {
      EXPECT_EQ(read(*device_, param_), read(*device_, cast(*device_, master_, c_.param, support::anyone(*device_))));
    }
  }
}

// A parameter that did not move is refused, if its type can represent a step of this size.
TEST_P(Adam, BoundRefusesAParameterThatDidNotMove) {
  const Values before = read(*device_, param_);
  const Tensor grad = gaussian(c_.grad, 11, 0.1);
  const AdamExpected expected =
      reference::adam(problem(1), {before, Values(kCount), Values(kCount)}, read(*device_, grad));
  EXPECT_FALSE(all_within(before, rounded_to(DType::kF32, expected.param)));
}

INSTANTIATE_TEST_SUITE_P(Cases, Adam,
                         ::testing::Values(AdamCase{"f32", DType::kF32, DType::kF32, false, true, 0.0f},
                                           AdamCase{"f32_decoupled", DType::kF32, DType::kBF16, false, true, 0.1f},
                                           AdamCase{"f32_coupled", DType::kF32, DType::kF32, false, false, 0.1f},
                                           AdamCase{"bf16", DType::kBF16, DType::kBF16, false, true, 0.1f},
                                           AdamCase{"bf16_master", DType::kBF16, DType::kBF16, true, true, 0.1f},
                                           AdamCase{"bf16_master_coupled", DType::kBF16, DType::kF32, true, false,
                                                    0.1f}),
                         [](const auto& instance) { return std::string(instance.param.label); });

class AdamEdges : public ::testing::Test {
 protected:
  struct State {
    Tensor param, exp_avg, exp_avg_sq;
  };
  State state(const Shape& shape, float param) {
    const auto make = [&](float value) {
      return make_tensor(*device_, shape, DType::kF32,
                         std::vector<float>(static_cast<std::size_t>(shape.numel()), value));
    };
    return {make(param), make(0.0f), make(0.0f)};
  }
  static AdamTensor tensor(const State& state, const Tensor& grad) {
    return {.param = state.param.view(),
            .grad = grad.view(),
            .exp_avg = state.exp_avg.view(),
            .exp_avg_sq = state.exp_avg_sq.view(),
            .master = {}};
  }
  void first_step(std::span<const AdamTensor> tensors) {
    device_->launch(
        &KernelTable::adam,
        AdamArgs{.tensors = tensors, .learning_rate = 0.1f, .bias_correction1 = 0.1f, .bias_correction2 = 0.001f});
  }
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
};

TEST_F(AdamEdges, ZeroGradientsMoveNothing) {
  const State s = state({1, 4}, 2.0f);
  const Tensor grad = make_tensor(*device_, {1, 4}, DType::kF32, std::vector<float>(4, 0.0f));
  const AdamTensor list[] = {tensor(s, grad)};
  first_step(list);
  EXPECT_EQ(read(*device_, s.param), Values(4, 2.0));
  EXPECT_EQ(read(*device_, s.exp_avg), Values(4, 0.0));
}

// g^2 underflows, so only epsilon bounds the step: m / (0 + eps).
TEST_F(AdamEdges, UnderflowedSecondMomentLeavesEpsilonAsDenominator) {
  const State s = state({1, 1}, 2.0f);
  const Tensor grad = make_tensor(*device_, {1, 1}, DType::kF32, {1e-30f});
  const AdamTensor list[] = {tensor(s, grad)};
  first_step(list);
  EXPECT_EQ(read(*device_, s.exp_avg_sq), Values{0.0});
  EXPECT_EQ(read(*device_, s.param), Values{2.0});  // 0.1 * 1e-30 / 1e-8 is far below half an ulp of 2
}

TEST_F(AdamEdges, NanGradientsStayInTheirElement) {
  const State s = state({1, 3}, 2.0f);
  const Tensor grad = make_tensor(*device_, {1, 3}, DType::kF32, {1.0f, std::numeric_limits<float>::quiet_NaN(), 1.0f});
  const AdamTensor list[] = {tensor(s, grad)};
  first_step(list);
  const Values param = read(*device_, s.param);
  EXPECT_NEAR(param[0], 1.9, 1e-6);
  EXPECT_TRUE(std::isnan(param[1]));
  EXPECT_EQ(param[2], param[0]);
}

TEST_F(AdamEdges, OneLaunchStepsManyTensorsOfAnyStrides) {
  const State s = state({4, 6}, 1.0f), other = state({0, 6}, 1.0f);
  const Tensor grad = make_tensor(*device_, {6, 4}, DType::kF32, reference::gaussian_values(24, 1)).transposed();
  const Tensor none = make_tensor(*device_, {0, 6}, DType::kF32, {});
  const AdamTensor list[] = {tensor(other, none), tensor(s, grad)};
  first_step(list);
  const Values gradients = read(*device_, grad), param = read(*device_, s.param);
  for (std::size_t i = 0; i < 24; ++i) EXPECT_NEAR(param[i], gradients[i] > 0.0 ? 0.9 : 1.1, 1e-4);
}

}  // namespace
}  // namespace fp8lab

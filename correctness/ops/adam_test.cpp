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

// g^2 underflows, so only epsilon bounds the step: m / (0 + eps).
TEST_F(AdamEdges, UnderflowedSecondMomentLeavesEpsilonAsDenominator) {
  const State s = state({1, 1}, 2.0f);
  const Tensor grad = make_tensor(*device_, {1, 1}, DType::kF32, {1e-30f});
  const AdamTensor list[] = {tensor(s, grad)};
  first_step(list);
  EXPECT_EQ(read(*device_, s.exp_avg_sq), Values{0.0});
  EXPECT_EQ(read(*device_, s.param), Values{2.0});  // 0.1 * 1e-30 / 1e-8 is far below half an ulp of 2
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

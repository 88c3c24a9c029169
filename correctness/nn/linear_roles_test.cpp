// The three products of a linear layer under per-tensor scaling: each operand is cast to its role's format under its
// role's scale, and backward reads the data that forward cast. A reference makes the same casts in double.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "nn/layers/linear.h"
#include "nn/role_reference.h"
#include "reference/compare.h"
#include "reference/test_data.h"
#include "support/dense.h"
#include "support/layer_run.h"
#include "support/test_device.h"

namespace fp8lab {
namespace {

using namespace nn_test;

constexpr std::int64_t kLinearTokens = 40, kIn = 48, kOut = 32;

struct LinearScales {
  double x = 1.0, weight = 1.0, grad = 1.0;
};

struct Results {
  Doubles y, grad_x, grad_weight;
};

struct Data {
  Doubles x, weight, grad;
};

Results reference_results(const Data& data, const LinearScales& scales) {
  const Doubles x = cast(data.x, kE4M3, scales.x), weight = cast(data.weight, kE4M3, scales.weight);
  const Doubles grad = cast(data.grad, kE5M2, scales.grad);
  Results results{Doubles(kLinearTokens * kOut), Doubles(kLinearTokens * kIn), Doubles(kOut * kIn)};
  for (std::size_t t = 0; t < kLinearTokens; ++t) {
    for (std::size_t o = 0; o < kOut; ++o) {
      for (std::size_t i = 0; i < kIn; ++i) {
        results.y[t * kOut + o] += x[t * kIn + i] * weight[o * kIn + i];
        results.grad_x[t * kIn + i] += grad[t * kOut + o] * weight[o * kIn + i];
        results.grad_weight[o * kIn + i] += grad[t * kOut + o] * x[t * kIn + i];
      }
    }
  }
  return results;
}

/// The smallest SQNR of the three results.
double agreement(const Results& expected, const Results& actual) {
  return std::min({reference::sqnr_db(expected.y, actual.y), reference::sqnr_db(expected.grad_x, actual.grad_x),
                   reference::sqnr_db(expected.grad_weight, actual.grad_weight)});
}

struct Case {
  const char* recipe;
  const char* arch;
};

class LinearRoles : public ::testing::TestWithParam<Case> {
 protected:
  LinearRoles() {
    device_->write(parameter().value, reference::gaussian_values(kOut * kIn, 2, 0.05));
    data_ = {support::read(*device_, x_), support::read(*device_, parameter().value), support::read(*device_, grad_)};
  }

  Results step() {
    const auto leaf = std::make_shared<support::LeafNode>(runtime_);
    const Variable y = linear_.forward(runtime_, {x_, leaf});
    update_scales(runtime_, registry_.forward_scales, nullptr);
    run_backward(runtime_, y, grad_);
    update_scales(runtime_, registry_.backward_scales, nullptr);
    Results results{support::read(*device_, y.value), support::read(*device_, leaf->gradient()),
                    support::read(*device_, parameter().grad)};
    parameter().grad = {};
    return results;
  }

  /// The scales of the data once they have been measured.
  LinearScales settled_scales() const {
    return {kE4M3.max() / amax_of(data_.x), kE4M3.max() / amax_of(data_.weight), kE5M2.max() / amax_of(data_.grad)};
  }
  bool has_history() const { return recipe_.activation.amax_source == AmaxSource::kHistory; }

  Parameter& parameter() { return *registry_.parameters.front(); }
  Tensor tensor(std::int64_t cols, std::uint64_t seed, double deviation) {
    return support::make_tensor(*device_, {kLinearTokens, cols}, DType::kF32,
                                reference::gaussian_values(kLinearTokens * cols, seed, deviation));
  }

  std::unique_ptr<Device> device_ = support::open_poisoned_device(GetParam().arch);
  Runtime runtime_{.device = *device_, .behaviors = {}};
  Recipe recipe_ = make_recipe(GetParam().recipe);
  Registry registry_;
  Build build_{.runtime = runtime_, .recipe = recipe_, .registry = registry_, .dtype = DType::kF32};
  Linear linear_{build_, "linear", {.in = kIn, .out = kOut, .bias = false}};
  // Away from each other, so that a scale in the wrong place gives a large error.
  Tensor x_ = tensor(kIn, 1, 1.7);
  Tensor grad_ = tensor(kOut, 3, 0.003);
  Data data_;
};

// The data are equal and sums are in FP32: 100 dB leaves no room for a wrong cast or tie. A matrix unit's sums of FP8
// products keep 13 bits below their largest term, 20 log10(2^13) = 78 dB; one value off by one step is 30 dB.
double least_agreement() { return support::test_device() == "cpu" ? 100.0 : 75.0; }

TEST_P(LinearRoles, AreCastUnderTheirOwnScales) {
  EXPECT_GT(agreement(reference_results(data_, has_history() ? LinearScales{} : settled_scales()), step()),
            least_agreement());
  EXPECT_GT(agreement(reference_results(data_, settled_scales()), step()), least_agreement());
}

TEST_P(LinearRoles, WrongScaleOfAnyRoleIsRefused) {
  step();
  const Results actual = step();
  for (double LinearScales::* role : {&LinearScales::x, &LinearScales::weight, &LinearScales::grad}) {
    LinearScales scales = settled_scales();
    scales.*role *= 0.67;
    EXPECT_LT(agreement(reference_results(data_, scales), actual), 40.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, LinearRoles,
                         ::testing::Values(Case{"delayed", "hopper"}, Case{"delayed", "blackwell"},
                                           Case{"current", "hopper"}, Case{"current", "blackwell"}),
                         [](const auto& test) { return std::string(test.param.recipe) + "_" + test.param.arch; });

}  // namespace
}  // namespace fp8lab

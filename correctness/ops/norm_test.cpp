#include "ops/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "reference/dense_reference.h"
#include "reference/test_data.h"
#include "support/dense.h"

namespace fp8lab {
namespace {

using reference::Values;
using support::make_tensor;
using support::read;

constexpr float kEpsilon = 1e-5f;

struct NormCase {
  NormKind kind;
  DType dtype;
  DType parameters;
  std::int64_t rows;
  std::int64_t cols;
  double offset;  ///< the rows' mean, in standard deviations
};

std::string norm_name(const ::testing::TestParamInfo<NormCase>& instance) {
  const NormCase& c = instance.param;
  return std::string(c.kind == NormKind::kLayerNorm ? "layer" : "rms") + "_" + std::string(name(c.dtype)) + "_" +
         std::string(name(c.parameters)) + "_" + std::to_string(c.rows) + "x" + std::to_string(c.cols) +
         (c.offset == 0.0 ? "" : "_offset");
}

std::vector<float> shifted_gaussian(std::int64_t count, std::uint64_t seed, double offset, double deviation = 1.0) {
  std::vector<float> values = reference::gaussian_values(count, seed, deviation);
  for (float& value : values) value += static_cast<float>(offset);
  return values;
}

class Norm : public ::testing::TestWithParam<NormCase> {
 protected:
  Norm()
      : x_(tensor(c_.rows, c_.cols, c_.dtype, shifted_gaussian(c_.rows * c_.cols, 1, c_.offset))),
        grad_y_(tensor(c_.rows, c_.cols, c_.dtype, reference::gaussian_values(c_.rows * c_.cols, 2))),
        gamma_(make_tensor(*device_, {c_.cols}, c_.parameters, shifted_gaussian(c_.cols, 3, 1.0, 0.2))) {
    if (centred()) beta_ = make_tensor(*device_, {c_.cols}, c_.parameters, reference::gaussian_values(c_.cols, 4));
  }

  Tensor tensor(std::int64_t rows, std::int64_t cols, DType dtype, const std::vector<float>& values) {
    return make_tensor(*device_, {rows, cols}, dtype, values);
  }
  bool centred() const { return c_.kind == NormKind::kLayerNorm; }
  reference::NormProblem problem() const {
    return {.centred = centred(), .rows = c_.rows, .cols = c_.cols, .epsilon = double{kEpsilon}};
  }
  reference::NormParameters parameters() {
    return {read(*device_, gamma_), centred() ? read(*device_, beta_) : Values{}};
  }
  NormOutputs forward() {
    return norm_forward(*device_, {.kind = c_.kind, .x = x_, .gamma = gamma_, .beta = beta_, .epsilon = kEpsilon});
  }

  const NormCase c_ = GetParam();
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Tensor x_, grad_y_, gamma_, beta_;
};

TEST_P(Norm, ForwardEqualsItsDefinition) {
  const NormOutputs out = forward();
  const reference::NormExpected expected = reference::norm_forward(problem(), read(*device_, x_), parameters());
  const reference::Expected y = rounded_to(c_.dtype, expected.y);
  EXPECT_TRUE(all_within(read(*device_, out.y), y));
  EXPECT_TRUE(all_within(read(*device_, out.rstd), rounded_to(DType::kF32, expected.rstd)));
  if (centred()) {
    EXPECT_TRUE(all_within(read(*device_, out.mean), rounded_to(DType::kF32, expected.mean)));
  } else {
    EXPECT_FALSE(out.mean);
  }
  if (c_.rows * c_.cols > 8) {
    EXPECT_TRUE(refuses_mutations(y));
  }
}

TEST_P(Norm, BackwardEqualsTheDerivative) {
  const NormOutputs out = forward();
  const NormGradients grads = norm_backward(
      *device_, {.kind = c_.kind, .grad_y = grad_y_, .x = x_, .gamma = gamma_, .mean = out.mean, .rstd = out.rstd});
  const reference::NormGradientExpected expected =
      reference::norm_backward(problem(), read(*device_, x_), parameters(), read(*device_, grad_y_));
  const reference::Expected grad_x = rounded_to(c_.dtype, expected.x);
  const reference::Expected grad_gamma = rounded_to(c_.parameters, expected.gamma);
  EXPECT_TRUE(all_within(read(*device_, grads.x), grad_x));
  EXPECT_TRUE(all_within(read(*device_, grads.gamma), grad_gamma));
  EXPECT_EQ(grads.x.shape(), x_.shape());
  EXPECT_EQ(grads.gamma.shape(), gamma_.shape());
  if (centred()) {
    const reference::Expected grad_beta = rounded_to(c_.parameters, expected.beta);
    EXPECT_TRUE(all_within(read(*device_, grads.beta), grad_beta));
    EXPECT_TRUE(refuses_mutations(grad_beta));
  } else {
    EXPECT_FALSE(grads.beta);
  }
  if (c_.cols > 8) {
    EXPECT_TRUE(refuses_mutations(grad_x));
    EXPECT_TRUE(refuses_mutations(grad_gamma));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Norm,
                         ::testing::Values(NormCase{NormKind::kLayerNorm, DType::kF32, DType::kF32, 3, 17, 0.0},
                                           NormCase{NormKind::kLayerNorm, DType::kF32, DType::kF32, 5, 64, 8.0},
                                           NormCase{NormKind::kLayerNorm, DType::kBF16, DType::kBF16, 5, 64, 0.0},
                                           NormCase{NormKind::kLayerNorm, DType::kBF16, DType::kF32, 7, 33, 1.0},
                                           NormCase{NormKind::kLayerNorm, DType::kF32, DType::kF32, 33, 257, 0.0},
                                           NormCase{NormKind::kLayerNorm, DType::kF32, DType::kF32, 2, 1, 0.0},
                                           NormCase{NormKind::kRmsNorm, DType::kF32, DType::kF32, 3, 17, 0.0},
                                           NormCase{NormKind::kRmsNorm, DType::kF32, DType::kF32, 5, 64, 8.0},
                                           NormCase{NormKind::kRmsNorm, DType::kBF16, DType::kBF16, 5, 64, 0.0},
                                           NormCase{NormKind::kRmsNorm, DType::kF16, DType::kF32, 7, 33, 1.0},
                                           NormCase{NormKind::kRmsNorm, DType::kF32, DType::kF32, 33, 257, 0.0}),
                         norm_name);

class NormEdges : public ::testing::Test {
 protected:
  Tensor make(const Shape& shape, DType dtype = DType::kF32) {
    return make_tensor(*device_, shape, dtype, std::vector<float>(static_cast<std::size_t>(shape.numel()), 1.0f));
  }
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
};

TEST_F(NormEdges, ConstantRowsGiveTheBias) {
  const Tensor x = make({2, 5}), gamma = make({5}), beta = make({5});
  const NormOutputs out = norm_forward(*device_, {.x = x, .gamma = gamma, .beta = beta});
  EXPECT_EQ(read(*device_, out.y), Values(10, 1.0));
}

TEST_F(NormEdges, LayerNormWithoutBetaEqualsOneOfZeros) {
  const auto gaussian = [&](const Shape& shape, std::uint64_t seed) {
    return make_tensor(*device_, shape, DType::kF32, reference::gaussian_values(shape.numel(), seed));
  };
  const Tensor x = gaussian({3, 40}, 1), gamma = gaussian({40}, 2), grad_y = gaussian({3, 40}, 3);
  const Tensor zeros = make_tensor(*device_, {40}, DType::kF32, std::vector<float>(40, 0.0f));
  const NormOutputs with = norm_forward(*device_, {.x = x, .gamma = gamma, .beta = zeros}),
                    without = norm_forward(*device_, {.x = x, .gamma = gamma, .beta = {}});
  EXPECT_EQ(read(*device_, without.y), read(*device_, with.y));
  const auto backward = [&](bool has_beta) {
    return norm_backward(
        *device_,
        {.grad_y = grad_y, .x = x, .gamma = gamma, .mean = with.mean, .rstd = with.rstd, .has_beta = has_beta});
  };
  EXPECT_EQ(read(*device_, backward(false).x), read(*device_, backward(true).x));
  EXPECT_EQ(read(*device_, backward(false).gamma), read(*device_, backward(true).gamma));
  EXPECT_FALSE(backward(false).beta);
}

TEST_F(NormEdges, WithoutRowsParametersHaveZeroGradients) {
  const Tensor x = make({0, 5}), gamma = make({5}), beta = make({5}), statistics = make({0, 1});
  EXPECT_EQ(norm_forward(*device_, {.x = x, .gamma = gamma, .beta = beta}).y.numel(), 0);
  const NormGradients grads =
      norm_backward(*device_, {.grad_y = x, .x = x, .gamma = gamma, .mean = statistics, .rstd = statistics});
  EXPECT_EQ(read(*device_, grads.gamma), Values(5, 0.0));
  EXPECT_EQ(read(*device_, grads.beta), Values(5, 0.0));
}

TEST_F(NormEdges, KeepsEveryDimensionOfItsInput) {
  const Tensor x = make({2, 3, 4}), gamma = make({4}), beta = make({4});
  EXPECT_EQ(norm_forward(*device_, {.x = x, .gamma = gamma, .beta = beta}).y.shape(), (Shape{2, 3, 4}));
}

TEST_F(NormEdges, ReadsColumnsOfALargerTensor) {
  const std::vector<float> values = reference::gaussian_values(4 * 24, 5);
  const Tensor wide = make_tensor(*device_, {4, 24}, DType::kBF16, values);
  const Tensor part = wide.columns(8, 12);
  const Tensor full = make_tensor(*device_, {4, 12}, DType::kBF16, device_->read(part));
  const Tensor gamma = make({12});
  const auto y = [&](const Tensor& x) {
    return read(*device_, norm_forward(*device_, {.kind = NormKind::kRmsNorm, .x = x, .gamma = gamma, .beta = {}}).y);
  };
  EXPECT_EQ(y(part), y(full));
}

TEST_F(NormEdges, NanStaysInItsRow) {
  const Tensor x = make_tensor(*device_, {2, 2}, DType::kF32, {1.0f, std::nanf(""), 1.0f, 2.0f});
  const Values y =
      read(*device_, norm_forward(*device_, {.kind = NormKind::kRmsNorm, .x = x, .gamma = make({2}), .beta = {}}).y);
  EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]));
  EXPECT_FALSE(std::isnan(y[2]) || std::isnan(y[3]));
}

TEST_F(NormEdges, RefusalsNameTheArgumentAndTheRule) {
  const Tensor x = make({4, 6}), six = make({6}), five = make({5}), data = make({4, 6}, DType::kE4M3);
  const auto forward = [&](const Tensor& at_x, const Tensor& gamma, const Tensor& beta) {
    return support::error_of([&] { norm_forward(*device_, {.x = at_x, .gamma = gamma, .beta = beta}); });
  };
  EXPECT_EQ(forward(x, five, six), "norm_forward: gamma is f32 [5]; it must have 6 elements, one for each column of x");
  EXPECT_EQ(forward(x, six, five), "norm_forward: beta is f32 [5]; it must have 6 elements, one for each column of x");
  EXPECT_EQ(forward(data, six, six), "norm_forward: x is e4m3 [4, 6]; it must be an f32, f16 or bf16 tensor");
  EXPECT_EQ(forward(make({4, 0}), make({0}), make({0})),
            "norm_forward: x is f32 [4, 0]; a row needs at least one element");

  const auto backward = [&](const Tensor& grad_y, const Tensor& rstd) {
    return support::error_of(
        [&] { norm_backward(*device_, {.grad_y = grad_y, .x = x, .gamma = six, .mean = make({4, 1}), .rstd = rstd}); });
  };
  EXPECT_EQ(backward(make({4, 5}), make({4, 1})),
            "norm_backward: grad_y is f32 [4, 5] and x is f32 [4, 6]; both must have one shape");
  EXPECT_EQ(backward(x, make({3, 1})),
            "norm_backward: rstd is f32 [3, 1]; it must have 4 elements, one for each row of x");
  EXPECT_EQ(backward(x, make({4, 1}, DType::kBF16)), "norm_backward: rstd is bf16 [4, 1]; it must be f32");
}

}  // namespace
}  // namespace fp8lab

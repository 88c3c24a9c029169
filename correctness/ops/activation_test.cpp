#include "ops/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "core/elementary.h"
#include "reference/dense_reference.h"
#include "reference/test_data.h"
#include "support/dense.h"

namespace fp8lab {
namespace {

using reference::Expected;
using reference::Values;
using support::make_tensor;
using support::read;

struct ActivationCase {
  ActivationKind kind;
  DType dtype;
  std::int64_t rows;
  std::int64_t cols;  ///< columns of the output
};

std::string case_name(const ::testing::TestParamInfo<ActivationCase>& instance) {
  const ActivationCase& c = instance.param;
  return std::string(c.kind == ActivationKind::kGelu     ? "gelu"
                     : c.kind == ActivationKind::kSwiglu ? "swiglu"
                                                         : "geglu") +
         "_" + std::string(name(c.dtype)) + "_" + std::to_string(c.rows) + "x" + std::to_string(c.cols);
}

/// Normal values and, spread among them, values at which the functions saturate, vanish or bend.
std::vector<float> telling_values(std::int64_t count, std::uint64_t seed) {
  constexpr float kSpecial[] = {0.0f,   -0.0f, 1.0f,   -1.0f, 5.5f,    -5.5f, 11.9f,
                                -11.9f, 12.1f, -12.1f, 1e-6f, -300.0f, 1e4f};
  std::vector<float> values = reference::gaussian_values(count, seed, 2.0);
  for (std::size_t i = 0; i < values.size(); i += 3) values[i] = i % 2 == 0 ? kSpecial[i / 3 % 13] : values[i];
  return values;
}

class ActivationTest : public ::testing::TestWithParam<ActivationCase> {
 protected:
  bool gated() const { return c_.kind != ActivationKind::kGelu; }
  Expected forward(const Values& x) const {
    switch (c_.kind) {
      case ActivationKind::kSwiglu: return rounded_to(c_.dtype, reference::swiglu(c_.rows, c_.cols, x));
      case ActivationKind::kGeglu: return rounded_to(c_.dtype, reference::geglu(c_.rows, c_.cols, x));
      default: return rounded_to(c_.dtype, reference::gelu(x));
    }
  }
  Expected backward(const Values& x, const Values& grad_y) const {
    switch (c_.kind) {
      case ActivationKind::kSwiglu:
        return rounded_to(c_.dtype, reference::swiglu_gradient(c_.rows, c_.cols, x, grad_y));
      case ActivationKind::kGeglu: return rounded_to(c_.dtype, reference::geglu_gradient(c_.rows, c_.cols, x, grad_y));
      default: return rounded_to(c_.dtype, reference::gelu_gradient(x, grad_y));
    }
  }
  const ActivationCase c_ = GetParam();
  const std::int64_t in_cols_ = gated() ? 2 * c_.cols : c_.cols;
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Tensor x_ = make_tensor(*device_, {c_.rows, in_cols_}, c_.dtype, telling_values(c_.rows* in_cols_, 1));
  Tensor grad_y_ = make_tensor(*device_, {c_.rows, c_.cols}, c_.dtype, reference::gaussian_values(c_.rows* c_.cols, 2));
};

TEST_P(ActivationTest, ForwardEqualsItsDefinition) {
  const Tensor y = activation_forward(*device_, c_.kind, x_, support::anyone(*device_));
  const Expected expected = forward(read(*device_, x_));
  EXPECT_EQ(y.shape(), (Shape{c_.rows, c_.cols}));
  EXPECT_TRUE(all_within(read(*device_, y), expected));
  EXPECT_TRUE(refuses_mutations(expected));
}

TEST_P(ActivationTest, BackwardEqualsTheDerivative) {
  const Tensor grad_x = activation_backward(*device_, c_.kind, grad_y_, x_, support::anyone(*device_));
  const Expected expected = backward(read(*device_, x_), read(*device_, grad_y_));
  EXPECT_EQ(grad_x.shape(), x_.shape());
  EXPECT_TRUE(all_within(read(*device_, grad_x), expected));
  EXPECT_TRUE(refuses_mutations(expected));
}

INSTANTIATE_TEST_SUITE_P(Cases, ActivationTest,
                         ::testing::Values(ActivationCase{ActivationKind::kGelu, DType::kF32, 7, 31},
                                           ActivationCase{ActivationKind::kGelu, DType::kBF16, 7, 31},
                                           ActivationCase{ActivationKind::kGelu, DType::kF16, 3, 24},
                                           ActivationCase{ActivationKind::kGelu, DType::kF32, 65, 129},
                                           ActivationCase{ActivationKind::kSwiglu, DType::kF32, 7, 31},
                                           ActivationCase{ActivationKind::kSwiglu, DType::kBF16, 7, 31},
                                           ActivationCase{ActivationKind::kSwiglu, DType::kF32, 3, 2500},
                                           ActivationCase{ActivationKind::kGeglu, DType::kF32, 7, 31},
                                           ActivationCase{ActivationKind::kGeglu, DType::kBF16, 7, 31},
                                           ActivationCase{ActivationKind::kGeglu, DType::kF32, 3, 2500}),
                         case_name);

class ActivationEdges : public ::testing::Test {
 protected:
  Tensor make(const Shape& shape, DType dtype = DType::kF32) {
    return make_tensor(*device_, shape, dtype, std::vector<float>(static_cast<std::size_t>(shape.numel()), 1.0f));
  }
  HolderId anyone() { return support::anyone(*device_); }
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
};

TEST_F(ActivationEdges, InfinityAndNanPassThrough) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor x = make_tensor(*device_, {1, 3}, DType::kF32, {infinity, std::nanf(""), 3e38f});
  const Values y = read(*device_, activation_forward(*device_, ActivationKind::kGelu, x, anyone()));
  EXPECT_EQ(y[0], std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(y[1]));
  EXPECT_EQ(y[2], double{3e38f});
  const Values grad = read(*device_, activation_backward(*device_, ActivationKind::kGelu, make({1, 3}), x, anyone()));
  EXPECT_EQ(grad[0], 1.0);
  EXPECT_TRUE(std::isnan(grad[1]));
  EXPECT_EQ(grad[2], 1.0);
}

TEST_F(ActivationEdges, EmptyTensorsGiveEmptyTensors) {
  EXPECT_EQ(activation_forward(*device_, ActivationKind::kSwiglu, make({0, 8}), anyone()).shape(), (Shape{0, 4}));
  EXPECT_EQ(activation_backward(*device_, ActivationKind::kGelu, make({0, 8}), make({0, 8}), anyone()).shape(),
            (Shape{0, 8}));
}

TEST_F(ActivationEdges, RefusalsNameTheArgumentAndTheRule) {
  const auto forward = [&](ActivationKind kind, const Tensor& x) {
    return support::error_of([&] { activation_forward(*device_, kind, x, anyone()); });
  };
  EXPECT_EQ(forward(ActivationKind::kSwiglu, make({2, 7})),
            "activation_forward: x is f32 [2, 7]; swiglu divides its columns by two, so their number must be even");
  EXPECT_EQ(forward(ActivationKind::kGelu, {}),
            "activation_forward: x is absent; it must be an f32, f16 or bf16 tensor");
  EXPECT_EQ(support::error_of(
                [&] { activation_backward(*device_, ActivationKind::kSwiglu, make({2, 8}), make({2, 8}), anyone()); }),
            "activation_backward: grad_y is f32 [2, 8] and x is f32 [2, 8]; grad_y must be [2, 4]");
}

// Every 61st float between the last that underflows and the largest exponent, of both signs.
TEST(Elementary, ExponentialIsWithinTwoUlps) {
  double worst_ulps = 0.0;
  for (const std::uint32_t sign : {0u, 0x80000000u})
    for (std::uint32_t bits = 0; bits < 0x42B17218u; bits += 61) {
      const float x = float_from_bits(sign | bits);
      if (x > kLargestExponent) break;
      const double exact = std::exp(double{x});
      if (exact < double{std::numeric_limits<float>::min()}) continue;
      const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
      const double ulps = std::fabs(double{exponential(x)} - exact) / ulp;
      if (!(ulps <= worst_ulps)) worst_ulps = ulps;
    }
  EXPECT_LE(worst_ulps, 2.0);
  EXPECT_GT(worst_ulps, 0.4);  // the comparison does measure errors
}

TEST(Elementary, ExponentialAtTheEndsOfItsRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exponential(0.0f), 1.0f);
  EXPECT_EQ(exponential(-0.0f), 1.0f);
  EXPECT_EQ(exponential(89.0f), exponential(kLargestExponent));
  EXPECT_EQ(exponential(infinity), exponential(kLargestExponent));
  EXPECT_EQ(exponential(-105.0f), 0.0f);
  EXPECT_EQ(exponential(-infinity), 0.0f);
  for (const std::uint32_t nan : {0x7FC00000u, 0x7FFFFFFFu, 0x7F800001u, 0xFFC00001u})
    EXPECT_TRUE(std::isnan(exponential(float_from_bits(nan))));
  EXPECT_NEAR(double{exponential(-100.0f)}, std::exp(-100.0), 0x1p-149);  // subnormal
  EXPECT_EQ(sigmoid(-90.0f), 0.0f);
  EXPECT_EQ(sigmoid(0.0f), 0.5f);
  EXPECT_EQ(sigmoid(90.0f), 1.0f);
}

TEST(Elementary, TermsOfSumsAreExponentialsThatDoNotVanish) {
  for (std::uint32_t bits = 0x80000000u; bits <= 0xC2AE0000u; bits += 6101) {
    const float x = float_from_bits(bits);
    ASSERT_EQ(exponential_term(x), exponential(x)) << x;
  }
  EXPECT_EQ(exponential_term(0.0f), 1.0f);
  EXPECT_EQ(exponential_term(-std::numeric_limits<float>::infinity()), exponential(-87.0f));
}

// Every 61st normal float, and the floats next to 1, at which the logarithm vanishes.
TEST(Elementary, LogarithmIsWithinThreeUlps) {
  double worst_ulps = 0.0;
  const auto see = [&](std::uint32_t bits) {
    const float x = float_from_bits(bits);
    const double exact = std::log(double{x});
    if (exact == 0.0) return;
    const double ulps = std::fabs(double{logarithm(x)} - exact) / std::ldexp(1.0, std::ilogb(exact) - 23);
    if (!(ulps <= worst_ulps)) worst_ulps = ulps;
  };
  for (std::uint32_t bits = 0x00800000u; bits < 0x7F800000u; bits += 61) see(bits);
  for (std::uint32_t bits = 0x3F000000u; bits < 0x40000000u; bits += 7) see(bits);
  EXPECT_LE(worst_ulps, 3.0);
  EXPECT_GT(worst_ulps, 0.4);
}

TEST(Elementary, LogarithmAtTheEndsOfItsRange) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(logarithm(1.0f), 0.0f);
  EXPECT_EQ(logarithm(infinity), infinity);
  EXPECT_EQ(logarithm(0.0f), -infinity);
  EXPECT_TRUE(std::isnan(logarithm(-1.0f)));
  EXPECT_TRUE(std::isnan(logarithm(std::nanf(""))));
}

}  // namespace
}  // namespace fp8lab

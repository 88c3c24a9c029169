// Clamped SwiGLU: min(gate, limit) sigmoid(1.702 min(gate, limit)) (clamp(up) + 1).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/activation.h"
#include "reference/test_data.h"
#include "support/dense.h"
#include "support/error_of.h"

namespace fp8lab {
namespace {

using support::make_tensor;
using support::read;

constexpr std::int64_t kGatedRows = 5, kGatedCols = 300;
constexpr double kUnit = 0x1p-24;

double sigmoid_of(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// The value, its derivatives by gate and up, and the rounding errors of each. The sigmoid is within 4 ulp, that is 8
/// units; the rounding of its argument z changes it by z (1 - s) units; three further roundings make a product.
struct Expected {
  Expected(double gate, double up, double limit) {
    const double g = std::min(gate, limit), u = std::clamp(up, -limit, limit), z = 1.702 * g, s = sigmoid_of(z);
    value = g * s * (u + 1.0);
    by_gate = gate > limit ? 0.0 : (u + 1.0) * (s + z * s * (1.0 - s));
    by_up = std::abs(up) > limit ? 0.0 : g * s;
    units = 12.0 + std::abs(z);
    magnitude_by_gate = std::abs(u + 1.0) * (s + std::abs(z) * s);
  }
  double value, by_gate, by_up, units, magnitude_by_gate;
};

class ClampedSwigluTest : public ::testing::TestWithParam<float> {
 protected:
  Tensor make(const Shape& shape, const std::vector<float>& values) {
    return make_tensor(*device_, shape, DType::kF32, values);
  }
  HolderId anyone() { return support::anyone(*device_); }
  /// Normal values, and some at the limit, next to it, and far beyond.
  std::vector<float> inputs(std::uint64_t seed) {
    std::vector<float> values = reference::gaussian_values(kGatedRows * 2 * kGatedCols, seed, 3.0);
    const float limit = GetParam(), special[] = {limit, -limit, std::nextafter(limit, 1e9f), 100.0f, -100.0f, 0.0f};
    for (std::size_t i = 0; i < values.size(); i += 7) values[i] = special[i / 7 % 6];
    return values;
  }
  Activation rule() const { return {ActivationKind::kSwiglu, GetParam()}; }
  std::unique_ptr<Device> device_ = support::open_poisoned_device("hopper");
};

TEST_P(ClampedSwigluTest, ValuesAndDerivativesFollowTheDefinition_AndAreZeroWhereClamped) {
  const std::vector<float> x = inputs(1), grad = reference::gaussian_values(kGatedRows * kGatedCols, 2);
  const Tensor in = make({kGatedRows, 2 * kGatedCols}, x);
  const std::vector<double> y = read(*device_, activation_forward(*device_, rule(), in, anyone()));
  const std::vector<double> grad_x =
      read(*device_, activation_backward(*device_, rule(), make({kGatedRows, kGatedCols}, grad), in, anyone()));
  int clamped = 0;
  for (std::size_t i = 0; i < kGatedRows; ++i)
    for (std::size_t j = 0; j < kGatedCols; ++j) {
      const std::size_t gate = 2 * i * kGatedCols + j, up = gate + kGatedCols, out = i * kGatedCols + j;
      const Expected expected(double{x[gate]}, double{x[up]}, double{GetParam()});
      const double g = double{grad[out]};
      EXPECT_NEAR(y[out], expected.value, expected.units * kUnit * std::abs(expected.value) + 1e-38);
      EXPECT_NEAR(grad_x[gate], g * expected.by_gate,
                  4.0 * expected.units * kUnit * std::abs(g) * expected.magnitude_by_gate + 1e-38);
      EXPECT_NEAR(grad_x[up], g * expected.by_up, expected.units * kUnit * std::abs(g * expected.by_up) + 1e-38);
      if (x[gate] > GetParam()) {
        EXPECT_EQ(grad_x[gate], 0.0);
      }
      if (std::abs(x[up]) > GetParam()) {
        EXPECT_EQ(grad_x[up], 0.0);
      }
      clamped += x[gate] > GetParam() || std::abs(x[up]) > GetParam();
    }
  EXPECT_GT(clamped, kGatedRows * kGatedCols / 20);
}

// No place is within a distance of a limit: the function bends there.
TEST_P(ClampedSwigluTest, DerivativesAreDifferencesOfValues) {
  constexpr double kDistance = 1e-5;
  const auto at = [](double gate, double up, double limit) { return Expected(gate, up, limit); };
  const double limit = double{GetParam()};
  for (const double gate : {-2.0, 0.3, limit - 0.1, limit + 0.1})
    for (const double up : {-limit - 0.1, -0.2, 0.4, limit + 0.1}) {
      const double by_gate = (at(gate + kDistance, up, limit).value - at(gate - kDistance, up, limit).value) / 2e-5;
      const double by_up = (at(gate, up + kDistance, limit).value - at(gate, up - kDistance, limit).value) / 2e-5;
      EXPECT_NEAR(at(gate, up, limit).by_gate, by_gate, 1e-7);
      EXPECT_NEAR(at(gate, up, limit).by_up, by_up, 1e-7);
    }
}

INSTANTIATE_TEST_SUITE_P(Limits, ClampedSwigluTest, ::testing::Values(7.0f, 0.5f));

TEST(ClampedSwiglu, NaNPassesThrough_AndOnlySwigluHasALimit) {
  const auto device = support::open_poisoned_device("hopper");
  const HolderId anyone = support::anyone(*device);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = make_tensor(*device, {1, 4}, DType::kF32, {nan, 1.0f, 1.0f, nan});
  const Activation rule{ActivationKind::kSwiglu, 7.0f};
  for (const double value : read(*device, activation_forward(*device, rule, x, anyone))) EXPECT_TRUE(std::isnan(value));
  EXPECT_NE(support::error_of([&] {
              activation_forward(*device, {ActivationKind::kGelu, 7.0f}, x, anyone);
            }).find("limit is 7; it must be 0, or positive for swiglu"),
            std::string::npos);
}

}  // namespace
}  // namespace fp8lab

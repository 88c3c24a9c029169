// List operations over tensors, some in eight bits, and the Adam that is made of them.

#include <gtest/gtest.h>

#include <cmath>

#include "optim/foreach_optimizers.h"
#include "optim/parameters.h"
#include "reference/compare.h"
#include "support/recipe_names.h"

namespace fp8lab {
namespace {

using namespace optim_test;
using reference::bitwise_equal;
using Values = std::vector<double>;

class ListOps : public ::testing::Test {
 protected:
  Values read(const Tensor& tensor) { return support::read(*device_, tensor); }
  TensorList list(std::uint64_t seed, DType dtype = DType::kF32) {
    TensorList members;
    for (const Shape& shape : {Shape{3, 5}, Shape{0, 4}, Shape{2100}})
      members.push_back(ListMember::of(support::make_tensor(*device_, shape, dtype, rows_of(seed, 1.0, 0, shape))));
    return members;
  }
  /// Runs `operation` on x and expects rule(x, a, b), within `roundings` units of the largest term.
  template <class Operation, class Rule>
  void expect(const Operation& operation, const Rule& rule, double roundings) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      TensorList x = list(1, dtype);
      const TensorList a = list(2, dtype), b = list(3, dtype);
      std::vector<Values> before;
      for (const ListMember& member : x) before.push_back(read(member.value));
      operation(x, a, b);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const Values actual = read(x[i].value), as = read(a[i].value), bs = read(b[i].value);
        for (std::size_t j = 0; j < actual.size(); ++j) {
          const double expected = rule(before[i][j], as[j], bs[j]);
          const double largest = std::fabs(before[i][j]) + std::fabs(expected) + std::fabs(as[j]);
          const double stored = (dtype == DType::kBF16 ? 0x1p-8 : 0x1p-24) * std::fabs(expected);
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(actual[j]));
            continue;
          }
          ASSERT_LE(std::fabs(actual[j] - expected), stored + roundings * 0x1p-24 * largest) << i << ", " << j;
        }
      }
    }
  }
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Runtime runtime_{.device = *device_, .behaviors = {}};
};

TEST_F(ListOps, FollowTheirRules) {
  const double s = 0.375;
  using L = TensorList;
  expect([&](L& x, const L&, const L&) { foreach_scale(runtime_, x, s); },
         [&](double x, double, double) { return s * x; }, 1);
  expect([&](L& x, const L&, const L&) { foreach_add(runtime_, x, s); },
         [&](double x, double, double) { return x + s; }, 2);
  expect([&](L& x, const L& a, const L&) { foreach_add(runtime_, x, a, s); },
         [&](double x, double a, double) { return x + s * a; }, 3);
  expect([&](L& x, const L&, const L&) { foreach_sqrt(runtime_, x); },
         [&](double x, double, double) { return std::sqrt(x); }, 1);
  for (const double weight : {0.0, 0.375, 0.5, 0.875, 1.0}) {
    expect([&](L& x, const L& a, const L&) { foreach_lerp(runtime_, x, a, weight); },
           [&](double x, double a, double) { return x + weight * (a - x); }, 4);
    expect([&](L& x, const L& a, const L& b) { foreach_lerp_product(runtime_, x, a, b, weight); },
           [&](double x, double a, double b) { return x + weight * (a * b - x); }, 12);
  }
  expect([&](L& x, const L& a, const L& b) { foreach_addcdiv(runtime_, x, a, b, s); },
         [&](double x, double a, double b) { return x + s * a / b; }, 4);
}

TEST_F(ListOps, RefuseListsOfDifferentLengthsOrShapes) {
  TensorList x = list(1), shorter = list(2), other = list(2);
  shorter.pop_back();
  std::swap(other[0], other[2]);
  EXPECT_THROW(foreach_lerp(runtime_, x, shorter, 0.5), Error);
  EXPECT_THROW(foreach_lerp(runtime_, x, other, 0.5), Error);
}

// Computed only from the far end, the result would be a difference of large numbers.
TEST_F(ListOps, LerpByOneGivesTheOtherListHoweverLargeItsOwnValues) {
  TensorList x = list(1);
  foreach_scale(runtime_, x, 1e12);
  const TensorList to = list(2);
  foreach_lerp(runtime_, x, to, 1.0);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(read(x[i].value), read(to[i].value));
}

class QuantizedLists : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Runtime runtime_{.device = *device_, .behaviors = {}};
};

// Dequantise to the nominal type, compute, cast: done step by step and compared in every byte.
TEST_P(QuantizedLists, AreDequantisedComputedAndWrittenBack) {
  const auto parameter = optim_test::make_parameter(*device_, {.recipe = GetParam()});
  const Tensor plain = support::make_tensor(*device_, {3, 3}, DType::kBF16, rows_of(3, 1.0, 0, {3, 3}));
  const Values before = support::read(*device_, plain);
  const Tensor values =
      dequantize(*device_, parameter->quantized.rowwise_operand(), DType::kBF16, support::anyone(*device_));
  TensorList list = {ListMember::of(plain), ListMember::of(*parameter)};
  foreach_scale(runtime_, list, 0.3);
  std::vector<float> scaled = device_->read(values);
  for (float& value : scaled) value = 0.3f * value;
  Quantizer inputs = *parameter->quantizer;
  inputs.amax = {};
  const QuantizedTensor expected =
      quantize(*device_, support::make_tensor(*device_, {256, 128}, DType::kBF16, scaled), inputs);
  EXPECT_TRUE(bitwise_equal(all_bytes(*device_, parameter->quantized), all_bytes(*device_, expected)));
  EXPECT_NE(support::read(*device_, plain), before);
}

TEST_P(QuantizedLists, MoveUnderAdamWithoutMasters) {
  const auto parameter = optim_test::make_parameter(*device_, {.recipe = GetParam()});
  const auto data = all_bytes(*device_, parameter->quantized);
  ForeachAdam adam({parameter.get()}, {.learning_rate = 0.05});
  set_gradient(*device_, *parameter, 1);
  adam.step(runtime_);
  EXPECT_FALSE(bitwise_equal(all_bytes(*device_, parameter->quantized), data));
}
INSTANTIATE_TEST_SUITE_P(Recipes, QuantizedLists, ::testing::ValuesIn(support::quantized_recipe_names()),
                         [](const auto& test) { return std::string(test.param); });

TEST(ForeachAdam, RefusesOptionsWithoutEffectOnLists) {
  EXPECT_THROW(ForeachAdam({}, {.master = MasterWeights::kF32}), Error);
  EXPECT_THROW(ForeachAdam({}, {.exp_avg = DType::kBF16}), Error);
  EXPECT_THROW(ForeachAdam({}, {.max_grad_norm = 1.0}), Error);
}

}  // namespace
}  // namespace fp8lab

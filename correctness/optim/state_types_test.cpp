// Adam's state in every type; each step is judged by the rule in double precision from the state that the kernel left.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>

#include "core/moment_scale.h"
#include "optim/parameters.h"
#include "reference/compare.h"
#include "reference/dense_reference.h"

namespace fp8lab {
namespace {

using reference::AdamExpected;
using reference::Expected;
using reference::Values;
using namespace optim_test;

struct StateCase {
  const char* name;
  DType param;
  MasterWeights master;
  DType exp_avg;
  DType exp_avg_sq;
  bool decoupled_decay = true;
};

/// The values of a moment: its elements times its scale.
Values moment(Device& device, const Tensor& elements, const Tensor& scale) {
  Values values = support::read(device, elements);
  if (!scale) return values;
  const double factor = support::read(device, scale).front();
  for (double& value : values) value *= factor;
  return values;
}

/// Storing a moment adds half a unit of its type, in units of its scale, that is relative to the largest element.
Expected stored_as(DType dtype, Expected moment) {
  double largest = 0.0;
  for (const double value : moment.value) largest = std::fmax(largest, std::fabs(value));
  const double scale = moment_limit(dtype) > 0.0f ? largest / double{moment_limit(dtype)} : 1.0;
  const double relative = dtype == DType::kE4M3   ? 0x1p-4
                          : dtype == DType::kF16  ? 0x1p-11
                          : dtype == DType::kBF16 ? 0x1p-8
                                                  : 0x1p-24;
  const double smallest = dtype == DType::kE4M3 ? 0x1p-10 : dtype == DType::kF16 ? 0x1p-25 : 0x1p-134;
  for (std::size_t i = 0; i < moment.value.size(); ++i)
    moment.error[i] +=
        relative * std::fabs(moment.value[i]) + smallest * scale + 3.0 * reference::kUnit * std::fabs(moment.value[i]);
  return moment;
}

class StateTypes : public ::testing::TestWithParam<StateCase> {
 protected:
  const StateCase c_ = GetParam();
  std::unique_ptr<Device> device_ = support::open_poisoned_device();
  Runtime runtime_{.device = *device_, .behaviors = {}};
  // Numbers that f32 represents, so that the reference and the kernel start from the same values.
  AdamOptions options_{.learning_rate = 0x1p-7,
                       .beta1 = 0.875,
                       .beta2 = 0.9375,
                       .epsilon = 0x1p-27,
                       .weight_decay = 0.125,
                       .decoupled_decay = c_.decoupled_decay,
                       .master = c_.master,
                       .exp_avg = c_.exp_avg,
                       .exp_avg_sq = c_.exp_avg_sq};
};

/// The f32 values of rounded high 16 bits and low 16 bits.
Values from_parts16(Device& device, const Tensor& high, const Tensor& low) {
  const std::vector<std::uint8_t> upper = support::bytes_of(device, high), lower = support::bytes_of(device, low);
  Values values(upper.size() / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto half = [&](const std::vector<std::uint8_t>& bytes) {
      return static_cast<std::uint16_t>(bytes[2 * i] | bytes[2 * i + 1] << 8);
    };
    const std::int64_t sum = (std::int64_t{half(upper)} << 16) + static_cast<std::int16_t>(half(lower));
    const auto bits = static_cast<std::uint32_t>(sum);
    float value = 0.0f;
    std::memcpy(&value, &bits, sizeof value);
    values[i] = static_cast<double>(value);
  }
  return values;
}

Values optimised(Device& device, const Parameter& parameter, const AdamState& state) {
  if (!state.master) return support::read(device, parameter.value);
  if (state.master.dtype() == DType::kI16) return from_parts16(device, parameter.value, state.master);
  return support::read(device, state.master);
}

TEST_P(StateTypes, EachStepIsWithinTheBoundOfItsRoundings) {
  const auto parameter = optim_test::make_parameter(*device_, {.shape = {5, 811}, .dtype = c_.param});
  Adam adam({parameter.get()}, options_);
  adam.make_state(runtime_);
  for (int step = 1; step <= 4; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    set_gradient(*device_, *parameter, step);
    const AdamState& state = adam.state().front();
    const reference::AdamProblem problem{.learning_rate = options_.learning_rate,
                                         .beta1 = options_.beta1,
                                         .beta2 = options_.beta2,
                                         .epsilon = options_.epsilon,
                                         .weight_decay = options_.weight_decay,
                                         .decoupled_decay = options_.decoupled_decay,
                                         .step = step};
    AdamExpected expected =
        reference::adam(problem,
                        {optimised(*device_, *parameter, state), moment(*device_, state.exp_avg, state.exp_avg_scale),
                         moment(*device_, state.exp_avg_sq, state.exp_avg_sq_scale)},
                        support::read(*device_, parameter->grad));
    adam.step(runtime_);
    // Reading a scaled moment rounds it once more: a few units of the move, which is below four learning rates.
    for (double& error : expected.param.error) error += 4.0 * reference::kUnit * 4.0 * options_.learning_rate;
    const DType exact = state.master ? DType::kF32 : c_.param;
    const Values moved = optimised(*device_, *parameter, state);
    EXPECT_TRUE(all_within(moved, rounded_to(exact, expected.param)));
    const Expected mean = stored_as(c_.exp_avg, expected.exp_avg);
    const Expected square = stored_as(c_.exp_avg_sq, expected.exp_avg_sq);
    EXPECT_TRUE(all_within(moment(*device_, state.exp_avg, state.exp_avg_scale), mean));
    EXPECT_TRUE(all_within(moment(*device_, state.exp_avg_sq, state.exp_avg_sq_scale), square));
    if (!state.master) continue;
    // The parameter is the rounding of the optimised value; remainders round ties away from zero, which no value here
    // is.
    const Values stored = support::read(*device_, parameter->value);
    for (std::size_t i = 0; i < stored.size(); ++i)
      ASSERT_LE(std::fabs(stored[i] - moved[i]), 0x1p-8 * std::fabs(moved[i])) << i;
  }
}

// A gradient of zeros leaves every element and every zero moment unchanged, whatever the moment's scale.
TEST_P(StateTypes, TensorOfZerosGivesNoNan) {
  const auto parameter = optim_test::make_parameter(*device_, {.shape = {3, 40}, .dtype = c_.param});
  options_.weight_decay = 0.0;
  Adam adam({parameter.get()}, options_);
  const Values before = support::read(*device_, parameter->value);
  for (int step = 0; step < 3; ++step) {
    set_gradient(*device_, *parameter, 0, 0, 0.0);
    adam.step(runtime_);
  }
  EXPECT_EQ(support::read(*device_, parameter->value), before);
  const AdamState& state = adam.state().front();
  EXPECT_EQ(moment(*device_, state.exp_avg, state.exp_avg_scale), Values(120, 0.0));
  EXPECT_EQ(moment(*device_, state.exp_avg_sq, state.exp_avg_sq_scale), Values(120, 0.0));
}

TEST_P(StateTypes, NanStaysInItsElement) {
  const auto parameter = optim_test::make_parameter(*device_, {.shape = {1, 9}, .dtype = c_.param});
  Adam adam({parameter.get()}, options_);
  std::vector<float> gradient(9, 0.25f);
  gradient[4] = std::numeric_limits<float>::quiet_NaN();
  for (int step = 0; step < 2; ++step) {
    parameter->grad = support::make_tensor(*device_, {1, 9}, c_.param, gradient);
    adam.step(runtime_);
  }
  const Values values = support::read(*device_, parameter->value);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(values[i]), i == 4) << i;
}

// An infinity must not determine the scale of a moment: otherwise all other elements would become zero.
TEST_P(StateTypes, InfinityStaysInItsElement) {
  const auto without = optim_test::make_parameter(*device_, {.shape = {1, 9}, .dtype = c_.param}),
             with = optim_test::make_parameter(*device_, {.shape = {1, 9}, .dtype = c_.param});
  Adam calm({without.get()}, options_), upset({with.get()}, options_);
  for (int step = 0; step < 2; ++step) {
    std::vector<float> gradient = {0.25f, -0.5f, 0.125f, 1.0f, 1.0f, 0.0f, -1.0f, 0.75f, 0.0625f};
    without->grad = support::make_tensor(*device_, {1, 9}, c_.param, gradient);
    gradient[4] = std::numeric_limits<float>::infinity();
    with->grad = support::make_tensor(*device_, {1, 9}, c_.param, gradient);
    calm.step(runtime_);
    upset.step(runtime_);
  }
  const AdamState &expected = calm.state().front(), &actual = upset.state().front();
  const auto same = [&](const Values& a, const Values& b) {
    for (std::size_t i = 0; i < 9; ++i) EXPECT_TRUE(a[i] == b[i] || i == 4) << i << ": " << a[i] << " and " << b[i];
  };
  same(support::read(*device_, with->value), support::read(*device_, without->value));
  same(moment(*device_, actual.exp_avg, actual.exp_avg_scale),
       moment(*device_, expected.exp_avg, expected.exp_avg_scale));
  same(moment(*device_, actual.exp_avg_sq, actual.exp_avg_sq_scale),
       moment(*device_, expected.exp_avg_sq, expected.exp_avg_sq_scale));
}

// The largest magnitude is so small that its scale would be zero, or its quotients infinite.
TEST_P(StateTypes, MomentsOfTheSmallestGradientsStayFinite) {
  const auto parameter = optim_test::make_parameter(*device_, {.shape = {1, 6}, .dtype = c_.param});
  options_.weight_decay = 0.0;
  Adam adam({parameter.get()}, options_);
  const Values before = support::read(*device_, parameter->value);
  for (int step = 0; step < 3; ++step) {
    parameter->grad =
        support::make_tensor(*device_, {1, 6}, DType::kF32, {1e-40f, -1e-42f, 1e-44f, 0.0f, 3e-41f, -1e-40f});
    adam.step(runtime_);
    const AdamState& state = adam.state().front();
    for (const auto& [tensor, scale] :
         {std::pair{state.exp_avg, state.exp_avg_scale}, {state.exp_avg_sq, state.exp_avg_sq_scale}})
      for (const double value : moment(*device_, tensor, scale)) EXPECT_LE(std::fabs(value), 1e-39) << "step " << step;
  }
  EXPECT_EQ(support::read(*device_, parameter->value), before);
}

TEST_P(StateTypes, AllocatesTheBytesOfItsTypes) {
  const auto parameter = optim_test::make_parameter(*device_, {.shape = {8, 100}, .dtype = c_.param});
  Adam adam({parameter.get()}, options_);
  adam.make_state(runtime_);
  const auto moment_bytes = [](DType dtype) {
    return 800 * static_cast<std::int64_t>(size_bytes(dtype)) + (moment_limit(dtype) > 0.0f ? 4 : 0);
  };
  std::int64_t expected = moment_bytes(c_.exp_avg) + moment_bytes(c_.exp_avg_sq);
  if (c_.param != DType::kF32 && c_.master != MasterWeights::kNone)
    expected += c_.master == MasterWeights::kRemainder && c_.param == DType::kBF16 ? 1600 : 3200;
  EXPECT_EQ(device_->ledger().by_kind().at("optimizer state"), expected);
}

constexpr DType F32 = DType::kF32, BF16 = DType::kBF16, F16 = DType::kF16, E4M3 = DType::kE4M3;
constexpr MasterWeights kNone = MasterWeights::kNone, kF32 = MasterWeights::kF32, kRest = MasterWeights::kRemainder;
INSTANTIATE_TEST_SUITE_P(
    Types, StateTypes,
    ::testing::Values(
        StateCase{"f32", F32, kNone, F32, F32}, StateCase{"f32_coupled", F32, kNone, F32, F32, false},
        StateCase{"bf16_master_coupled", BF16, kF32, F32, F32, false}, StateCase{"f32_master", F32, kF32, F32, F32},
        StateCase{"bf16", BF16, kNone, F32, F32}, StateCase{"bf16_master", BF16, kF32, F32, F32},
        StateCase{"f16_master", F16, kF32, F32, F32}, StateCase{"f16_remainder", F16, kRest, F32, F32},
        StateCase{"bf16_remainder", BF16, kRest, F32, F32}, StateCase{"bf16_moments", BF16, kF32, BF16, BF16},
        StateCase{"f16_moments", BF16, kF32, F16, F16}, StateCase{"e4m3_moments", BF16, kF32, E4M3, E4M3},
        StateCase{"e4m3_f16_remainder", BF16, kRest, E4M3, F16}, StateCase{"f32_e4m3_moments", F32, kNone, E4M3, E4M3}),
    [](const auto& test) { return std::string(test.param.name); });

// Parameter and remainder together are the f32 master: a run with them ends at the same bits as a run with the copy.
TEST(Remainders, FollowTheMasterBitForBit) {
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}};
  const auto a = optim_test::make_parameter(*device, {.shape = {7, 333}}),
             b = optim_test::make_parameter(*device, {.shape = {7, 333}});
  Adam with_copy({a.get()}, {.learning_rate = 1e-3, .weight_decay = 0.01, .master = MasterWeights::kF32});
  Adam with_rest({b.get()}, {.learning_rate = 1e-3, .weight_decay = 0.01, .master = MasterWeights::kRemainder});
  for (int step = 1; step <= 30; ++step) {
    set_gradient(*device, *a, step);
    set_gradient(*device, *b, step);
    with_copy.step(runtime);
    with_rest.step(runtime);
    ASSERT_EQ(from_parts16(*device, b->value, with_rest.state().front().master),
              support::read(*device, with_copy.state().front().master))
        << "step " << step;
  }
}

// Remainders at the ends of the range: the largest float rounds to an infinity, and its remainder reverses that.
TEST(Remainders, KeepValuesThatRoundingWouldLose) {
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}};
  const auto parameter = optim_test::make_parameter(*device, {.shape = {1, 3}});
  device->write(parameter->value, std::vector<float>{0x1.fep127f, -0x1.fep127f, 1.0f});
  Adam adam({parameter.get()}, {.learning_rate = 0x1.fcp119, .epsilon = 1e-30, .master = MasterWeights::kRemainder});
  parameter->grad = support::make_tensor(*device, {1, 3}, DType::kBF16, {-1.0f, 1.0f, 0.0f});
  adam.step(runtime);
  const Values stored = support::read(*device, parameter->value);
  EXPECT_EQ(stored[0], std::numeric_limits<double>::infinity());
  EXPECT_EQ(stored[1], -std::numeric_limits<double>::infinity());
  const Values parts = from_parts16(*device, parameter->value, adam.state().front().master);
  EXPECT_GT(parts[0], 0x1.fep127);
  EXPECT_TRUE(std::isfinite(parts[0]));
  EXPECT_EQ(parts[1], -parts[0]);
  EXPECT_EQ(parts[2], 1.0);
}

// GPUs make NaNs of all ones, whose lower half would carry into the upper half and give zero.
TEST(Remainders, KeepNansOfAllBitPatterns) {
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}};
  const auto parameter = optim_test::make_parameter(*device, {.shape = {1, 4}});
  Adam adam({parameter.get()}, {.master = MasterWeights::kRemainder});
  parameter->grad = device->allocate({Shape{1, 4}, DType::kF32}, support::anyone(*device));
  const std::uint32_t bits[] = {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FFF8000u, 0x3F800000u};
  device->write_bytes(parameter->grad, std::as_bytes(std::span(bits)));
  adam.step(runtime);
  const Values values = support::read(*device, parameter->value);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(values[i]), i < 3) << i << ": " << values[i];
}

TEST(AdamStep, LeavesAParameterWithoutAGradient) {
  const std::unique_ptr<Device> device = support::open_poisoned_device();
  Runtime runtime{.device = *device, .behaviors = {}};
  const auto parameter = optim_test::make_parameter(*device, {.shape = {1, 9}});
  const Values before = support::read(*device, parameter->value);
  Adam adam({parameter.get()}, {});
  adam.step(runtime);
  EXPECT_EQ(support::read(*device, parameter->value), before);
  EXPECT_EQ(adam.steps(), 1);
}

TEST(AdamOptions, RefuseTypesThatMomentsCannotHave) {
  EXPECT_THROW(Adam({}, {.exp_avg = DType::kE5M2}), Error);
  EXPECT_THROW(Adam({}, {.exp_avg_sq = DType::kI32}), Error);
}

}  // namespace
}  // namespace fp8lab

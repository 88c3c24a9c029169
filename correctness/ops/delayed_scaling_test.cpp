#include "ops/delayed_scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "reference/compare.h"
#include "support/quantize.h"

// Amax histories and the scales made of them, compared with a reference that states the same rule as a window.
namespace fp8lab {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNotANumber = std::numeric_limits<float>::quiet_NaN();

class DelayedScalingTest : public ::testing::Test {
 protected:
  DelayedScales make(const DelayedScaling& options, std::vector<float> fp8_max = {448.0f}) {
    return DelayedScales(*device_, std::move(fp8_max), options, "layer");
  }
  void set_live(const DelayedScales& scales, int tensor, float amax) {
    device_->write(scales.amax(tensor), std::vector<float>{amax});
  }
  float scale(const DelayedScales& scales, int tensor = 0) { return device_->read(scales.scale(tensor))[0]; }
  /// The scales after each of `amaxes`.
  std::vector<float> scales_after(const DelayedScaling& options, const std::vector<float>& amaxes) {
    DelayedScales scales = make(options);
    std::vector<float> result;
    for (const float amax : amaxes) {
      set_live(scales, 0, amax);
      scales.update(*device_);
      result.push_back(scale(scales));
    }
    return result;
  }

  std::unique_ptr<Device> device_ = support::open_poisoned_device();
};

TEST_F(DelayedScalingTest, StartsWithScalesOfOneAndAnEmptyHistory) {
  const DelayedScales scales = make({.history_length = 16}, {448.0f, 448.0f, 57344.0f});
  EXPECT_EQ(scales.tensors(), 3);
  EXPECT_EQ(device_->read(scales.scales()), std::vector<float>(3, 1.0f));
  EXPECT_EQ(device_->read(scales.history()), std::vector<float>(48, 0.0f));
  EXPECT_EQ(scales.history().shape(), (Shape{16, 3}));
  EXPECT_EQ(scales.scale(2).shape(), (Shape{1}));
}

// A spike of 8 counts while it is one of the last four amaxes; the zero of step 4 is not recorded.
TEST_F(DelayedScalingTest, FirstTenScalesOfMax) {
  EXPECT_EQ(scales_after({.history_length = 4}, {2, 4, 1, 0, 8, 1, 1, 1, 1, 0.5f}),
            (std::vector<float>{224, 112, 112, 112, 56, 56, 56, 56, 448, 448}));
}

TEST_F(DelayedScalingTest, FirstTenScalesOfMostRecent) {
  EXPECT_EQ(
      scales_after({.history_length = 4, .algorithm = AmaxAlgorithm::kMostRecent}, {2, 4, 1, 0, 8, 1, 1, 1, 1, 0.5f}),
      (std::vector<float>{224, 112, 448, 448, 56, 448, 448, 448, 448, 896}));
}

// The spike of 8 has left the window by then; a maximum over it would give 448.
TEST_F(DelayedScalingTest, UpdateWithoutCastsKeepsTheScaleOfMax) {
  EXPECT_EQ(scales_after({.history_length = 4}, {8, 1, 1, 1, 0, 0, 1}),
            (std::vector<float>{56, 56, 56, 56, 56, 56, 448}));
}

TEST_F(DelayedScalingTest, HistoryOfOneFollowsEachAmax) {
  EXPECT_EQ(scales_after({.history_length = 1}, {2, 4, 0, 1}), (std::vector<float>{224, 112, 112, 448}));
  DelayedScales scales = make({.history_length = 1});
  set_live(scales, 0, 2.0f);
  scales.update(*device_);
  EXPECT_EQ(device_->read(scales.history()), std::vector<float>{0.0f})
      << "the only slot is the live one, ready for the next step";
}

TEST_F(DelayedScalingTest, MarginDividesTheScaleByTwoEachTime) {
  EXPECT_EQ(scales_after({.history_length = 2, .margin = 3}, {2, 1, 1}), (std::vector<float>{28, 28, 56}));
}

TEST_F(DelayedScalingTest, InfFreezesMaxUntilItLeavesTheWindow) {
  EXPECT_EQ(scales_after({.history_length = 3}, {2, kInfinity, 4, 4, 4}),
            (std::vector<float>{224, 224, 224, 224, 112}));
  EXPECT_EQ(scales_after({.history_length = 3, .algorithm = AmaxAlgorithm::kMostRecent}, {2, kInfinity, 4}),
            (std::vector<float>{224, 224, 112}));
}

TEST_F(DelayedScalingTest, NanIsIgnoredByMaxAndKeepsTheScaleOfMostRecent) {
  EXPECT_EQ(scales_after({.history_length = 3}, {2, kNotANumber, 1, 1, 1}),
            (std::vector<float>{224, 224, 224, 448, 448}));
  EXPECT_EQ(scales_after({.history_length = 3}, {kNotANumber, kNotANumber}), (std::vector<float>{1, 1}));
  EXPECT_EQ(scales_after({.history_length = 3, .algorithm = AmaxAlgorithm::kMostRecent}, {2, kNotANumber, 1}),
            (std::vector<float>{224, 224, 448}));
}

TEST_F(DelayedScalingTest, TinyAmaxGivesTheLargestScale) {
  EXPECT_EQ(scales_after({.history_length = 2}, {0x1p-149f}), (std::vector<float>{std::numeric_limits<float>::max()}));
}

// The slots themselves, which show the order of rotation.
TEST_F(DelayedScalingTest, RotatesTowardsTheLiveSlot) {
  DelayedScales scales = make({.history_length = 4});
  const auto step = [&](float amax) {
    set_live(scales, 0, amax);
    scales.update(*device_);
    return device_->read(scales.history());
  };
  EXPECT_EQ(step(1), (std::vector<float>{0, 0, 0, 1}));
  EXPECT_EQ(step(2), (std::vector<float>{0, 0, 1, 2}));
  EXPECT_EQ(step(0), (std::vector<float>{0, 0, 1, 2}));
  EXPECT_EQ(step(3), (std::vector<float>{0, 1, 2, 3}));
  EXPECT_EQ(step(4), (std::vector<float>{0, 2, 3, 4}));
}

// Long random sequences of every kind of amax; the tensors of a group do not affect each other.
TEST_F(DelayedScalingTest, FollowsTheWindowOverLongSequences) {
  const std::vector<float> fp8_max = {448.0f, 57344.0f, 448.0f};
  for (const std::int64_t length : {1, 2, 32, 1024, 4096})
    for (const AmaxAlgorithm algorithm : {AmaxAlgorithm::kMax, AmaxAlgorithm::kMostRecent})
      for (const int margin : {0, 2}) {
        const DelayedScaling options{.history_length = length, .algorithm = algorithm, .margin = margin};
        DelayedScales scales = make(options, fp8_max);
        std::vector<reference::DelayedTensor> expected;
        for (const float max : fp8_max) expected.emplace_back(max, options);
        const std::int64_t steps = length < 1000 ? 500 : length + 300;
        for (std::int64_t step = 0; step < steps; ++step) {
          for (int tensor = 0; tensor < 3; ++tensor) {
            const auto index = static_cast<std::uint64_t>(3 * step + tensor);
            float amax = static_cast<float>(std::ldexp(reference::uniform(7, index), static_cast<int>(index % 5)));
            const std::uint64_t kind = reference::scramble(index) % 100;
            if (kind < 10) amax = 0.0f;
            if (kind == 10) amax = kInfinity;
            if (kind == 11) amax = kNotANumber;
            if (kind == 12) amax = 1e6f;  // a spike
            if (kind == 13) amax = 0x1p-148f;
            set_live(scales, tensor, amax);
            expected[static_cast<std::size_t>(tensor)].update(amax);
          }
          scales.update(*device_);
          const std::vector<float> actual = device_->read(scales.scales());
          for (std::size_t tensor = 0; tensor < 3; ++tensor)
            ASSERT_EQ(actual[tensor], expected[tensor].scale()) << "length " << length << ", step " << step;
        }
      }
}

// The comparison above is strict: a window one step longer or shorter gives another sequence of scales.
TEST_F(DelayedScalingTest, WindowsOfOtherLengthsDiffer) {
  const auto differs = [&](std::int64_t length, std::int64_t other) {
    std::vector<float> amaxes;
    for (std::uint64_t i = 0; i < 400; ++i) amaxes.push_back(static_cast<float>(reference::uniform(9, i)));
    reference::DelayedTensor expected(448.0f, {.history_length = other});
    const std::vector<float> actual = scales_after({.history_length = length}, amaxes);
    bool any = false;
    for (std::size_t i = 0; i < amaxes.size(); ++i) {
      expected.update(amaxes[i]);
      any |= actual[i] != expected.scale();
    }
    return any;
  };
  EXPECT_FALSE(differs(32, 32));
  EXPECT_TRUE(differs(32, 31));
  EXPECT_TRUE(differs(32, 33));
}

// The entire loop: casts fill the live slot, and the next cast uses the scale of the casts before.
TEST_F(DelayedScalingTest, CastsRecordIntoTheLiveSlot) {
  const Recipe recipe = make_recipe("delayed");
  DelayedScales scales = make({.history_length = 8}, {448.0f, 57344.0f});
  const Tensor x = support::make_tensor(*device_, {64, 64}, DType::kBF16, support::varied_values(64 * 64, 31));
  const auto amax = static_cast<float>(reference::amax(support::matrix_of(*device_, x)));
  const auto cast = [&] {
    return quantize(*device_, x,
                    {.format = recipe.activation,
                     .scale = scales.scale(0),
                     .amax = scales.amax(0),
                     .holder = support::anyone(*device_)});
  };
  EXPECT_EQ(device_->read(cast().rowwise().scale_inv)[0], 1.0f);
  EXPECT_EQ(device_->read(scales.history())[0], amax);
  scales.update(*device_);
  EXPECT_EQ(scale(scales, 0), 448.0f / amax);
  EXPECT_EQ(scale(scales, 1), 1.0f) << "nothing was cast under the other one";
  const QuantizedTensor second = cast();
  const QuantizedTensor current =
      support::quantized(*device_, x, make_recipe("current").activation, {.orientations = {true, false}});
  EXPECT_TRUE(reference::bitwise_equal(support::bytes_of(*device_, second.rowwise().data),
                                       support::bytes_of(*device_, current.rowwise().data)));
}

TEST_F(DelayedScalingTest, StashKeepsTheScalesOfItsTime) {
  DelayedScales scales = make({.history_length = 1}, {448.0f, 448.0f});
  set_live(scales, 1, 2.0f);
  scales.update(*device_);
  const Tensor stash = scales.stash_scales(*device_, support::anyone(*device_));
  set_live(scales, 1, 7.0f);
  scales.update(*device_);
  EXPECT_EQ(device_->read(stash), (std::vector<float>{1, 224}));
  EXPECT_EQ(device_->read(scales.scales()), (std::vector<float>{1, 64}));
}

TEST_F(DelayedScalingTest, StateIsHeldAsRecipeState) {
  const DelayedScales scales = make({.history_length = 16}, {448.0f, 448.0f});
  const HolderBytes holders = device_->ledger().by_holder();
  ASSERT_EQ(holders.size(), 1u);
  EXPECT_EQ(holders[0].second, 2 * 4 + 16 * 2 * 4);
  EXPECT_NE(holders[0].first.find("recipe state of layer"), std::string::npos) << holders[0].first;
}

TEST_F(DelayedScalingTest, RefusesEmptyGroupsAndHistories) {
  EXPECT_NE(support::error_of([&] { make({.history_length = 0}); }).find("history of 0"), std::string::npos);
  EXPECT_NE(support::error_of([&] { make({.history_length = 4}, {}); }).find("at least one"), std::string::npos);
}

}  // namespace
}  // namespace fp8lab

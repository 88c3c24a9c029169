#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/counter_rng.h"
#include "ops/elementwise.h"
#include "reference/expected.h"
#include "support/dense_test.h"

// Operations that draw from the counter-based generator: dropout and random filling.
namespace fp8lab {
namespace {

using reference::Expected;
using reference::kUnit;
using support::read;
using Values = std::vector<double>;

class Dropout : public support::DenseTest {
 protected:
  Tensor ones(const Shape& shape) {
    const Tensor tensor = empty(shape);
    fill(*device_, tensor, 1.0f);
    return tensor;
  }
  Values kept(const Shape& shape, const DropoutKey& key) {
    return read(*device_, dropout(*device_, ones(shape), key, anyone()));
  }
};

// The number of kept entries is binomial: within five standard deviations, except for one seed in two million.
TEST_F(Dropout, KeepsTheAskedFractionAndScalesIt) {
  const std::int64_t count = 200 * 1000;
  for (const float probability : {0.1f, 0.5f, 0.9f}) {
    const Values y = kept({200, 1000}, {.probability = probability, .seed = 3, .stream = 4});
    const double rounded = std::ceil(double{probability} * 65536.0) / 65536.0;
    double kept_count = 0.0;
    for (const double value : y) {
      if (value == 0.0) continue;
      kept_count += 1.0;
      ASSERT_EQ(value, double{1.0f / (1.0f - static_cast<float>(rounded))});
    }
    const double p = rounded;
    const double deviation = std::sqrt(static_cast<double>(count) * p * (1.0 - p));
    EXPECT_NEAR(kept_count, static_cast<double>(count) * (1.0 - p), 5.0 * deviation);
  }
  EXPECT_EQ(kept({3, 5}, {.probability = 0.0f, .seed = 3}), Values(15, 1.0));
}

TEST_F(Dropout, ShardDrawsItsSliceOfTheFullMask) {
  const DropoutKey key{.probability = 0.4f, .seed = 5, .stream = 6};
  const Values full = kept({30, 2049}, key);
  for (const std::int64_t first : {0, 1, 17}) {
    DropoutKey shard = key;
    shard.row_offset = first;
    const Values part = kept({9, 2049}, shard);
    const auto begin = full.begin() + first * 2049;
    EXPECT_EQ(part, Values(begin, begin + 9 * 2049));
  }
  const Tensor wide = ones({30, 3000});
  EXPECT_EQ(read(*device_, dropout(*device_, wide.columns(500, 2049), key, anyone())), full);
}

TEST_F(Dropout, MaskIsDrawnAtTheGlobalIndex) {
  const DropoutKey key{.probability = 0.4f, .seed = 5, .stream = 6, .row_offset = 2};
  const Values mask = kept({3, 5001}, key);
  const CounterRng rng(5, 6);
  constexpr std::uint32_t kDropped = 26215;  // 0.4 x 65536 is 26214.4
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const std::uint64_t index = 2 * 5001 + i;
    const std::uint32_t half = rng.bits(index / 2) >> (index % 2 == 0 ? 0 : 16) & 0xFFFF;
    ASSERT_EQ(mask[i] != 0.0, half >= kDropped) << i;
  }
}

TEST_F(Dropout, OtherKeysGiveOtherMasks) {
  const DropoutKey key{.probability = 0.5f, .seed = 1, .stream = 1};
  const Values mask = kept({10, 100}, key);
  EXPECT_EQ(kept({10, 100}, key), mask);
  for (const DropoutKey& other : {DropoutKey{.probability = 0.5f, .seed = 2, .stream = 1},
                                  DropoutKey{.probability = 0.5f, .seed = 1, .stream = 2},
                                  DropoutKey{.probability = 0.5f, .seed = 1, .stream = 1, .row_offset = 1}}) {
    const Values different = kept({10, 100}, other);
    int agree = 0;
    for (std::size_t i = 0; i < mask.size(); ++i) agree += mask[i] == different[i];
    EXPECT_NEAR(agree, 500, 5 * std::sqrt(1000 * 0.25));
  }
}

// With the mask fixed dropout is linear and diagonal, so its gradient is itself: <D x, g> = <x, D g>, element by
// element.
TEST_F(Dropout, GradientIsTheSameOperation) {
  const DropoutKey key{.probability = 0.3f, .seed = 8, .stream = 9};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor g = gaussian({12, 65}, dtype);
    const Values mask = kept({12, 65}, key), gs = read(*device_, g);
    Expected expected(gs.size());
    for (std::size_t i = 0; i < gs.size(); ++i) {
      expected.value[i] = mask[i] == 0.0 ? 0.0 : gs[i] * 65536.0 / (65536.0 - 19661.0);  // 0.3 x 65536 is 19660.8
      expected.error[i] = 2.0 * kUnit * std::fabs(expected.value[i]);
    }
    expected = rounded_to(dtype, expected);
    EXPECT_TRUE(all_within(read(*device_, dropout(*device_, g, key, anyone())), expected));
    EXPECT_TRUE(refuses_mutations(expected));
  }
}

TEST_F(Dropout, DropsNan) {
  const Tensor x = empty({100, 10});
  fill(*device_, x, std::numeric_limits<float>::quiet_NaN());
  const DropoutKey key{.probability = 0.5f, .seed = 1, .stream = 1};
  const Values mask = kept({100, 10}, key), y = read(*device_, dropout(*device_, x, key, anyone()));
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), mask[i] != 0.0);
}

TEST_F(Dropout, RefusesAProbabilityOfOne) {
  const Tensor x = gaussian({2, 2});
  EXPECT_EQ(support::error_of([&] { dropout(*device_, x, {.probability = 1.0f}, anyone()); }),
            "dropout: probability 1; it must be in [0, 1)");
  EXPECT_NE(support::error_of([&] { dropout(*device_, x, {.probability = std::nanf("")}, anyone()); }), "");
}

class RandomFill : public support::DenseTest {
 protected:
  Values drawn(const Shape& shape, const RandomInputs& inputs, DType dtype = DType::kF32) {
    const Tensor out = empty(shape, dtype);
    random_fill(*device_, out, inputs);
    return read(*device_, out);
  }
};

TEST_F(RandomFill, ShardIsItsSliceOfTheFullTensor) {
  for (const bool normal : {true, false}) {
    RandomInputs inputs{.seed = 11, .stream = 12, .normal = normal, .scale = 0.02f};
    const Values full = drawn({20, 3001}, inputs);
    for (const std::int64_t first : {0, 3, 13}) {
      inputs.row_offset = first;
      const auto begin = full.begin() + first * 3001;
      EXPECT_EQ(drawn({7, 3001}, inputs), Values(begin, begin + 7 * 3001));
    }
    const Tensor wide = empty({20, 4000});
    inputs.row_offset = 0;
    random_fill(*device_, wide.columns(7, 3001), inputs);
    EXPECT_EQ(read(*device_, wide.columns(7, 3001)), full);
  }
}

TEST_F(RandomFill, ValuesAreDrawnAtTheGlobalIndex) {
  const CounterRng rng(11, 12);
  for (const bool normal : {true, false}) {
    const Values values =
        drawn({3, 5001}, {.seed = 11, .stream = 12, .row_offset = 2, .normal = normal, .scale = 0.5f});
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint64_t at = 2 * 5001 + i;
      ASSERT_EQ(values[i], 0.5 * double{normal ? rng.normal(at) : rng.uniform(at)}) << i;
    }
  }
}

// The mean of n draws deviates by sd / sqrt(n); the variance of a normal by sqrt(2 / n) of it, the variance of a
// uniform by sqrt(0.8 / n).
TEST_F(RandomFill, MomentsAreThoseOfItsDistribution) {
  const std::int64_t count = 400 * 1000;
  const double n = static_cast<double>(count);
  for (const bool normal : {true, false}) {
    const double scale = 0.02;
    const Values values = drawn({400, 1000}, {.seed = 1, .stream = 2, .normal = normal, .scale = 0.02f});
    double sum = 0.0, squares = 0.0;
    for (const double value : values) sum += value;
    const double mean = sum / n;
    for (const double value : values) squares += (value - mean) * (value - mean);
    const double variance = squares / n;
    const double expected_mean = normal ? 0.0 : scale / 2.0;
    const double expected_variance = normal ? scale * scale : scale * scale / 12.0;
    EXPECT_NEAR(mean, expected_mean, 5.0 * std::sqrt(expected_variance / n));
    EXPECT_NEAR(variance, expected_variance, 5.0 * expected_variance * std::sqrt((normal ? 2.0 : 0.8) / n));
    if (normal) continue;
    for (const double value : values) ASSERT_TRUE(value >= 0.0 && value < scale * (1.0 + 1e-7));
  }
}

TEST_F(RandomFill, SeedsAndStreamsAreUncorrelated) {
  const Values values = drawn({100, 1000}, {.seed = 1, .stream = 1});
  for (const RandomInputs& other : {RandomInputs{.seed = 2, .stream = 1}, RandomInputs{.seed = 1, .stream = 2}}) {
    const Values different = drawn({100, 1000}, other);
    double correlation = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) correlation += values[i] * different[i];
    EXPECT_NEAR(correlation, 0.0, 5.0 * std::sqrt(1e5));
  }
}

TEST_F(RandomFill, NarrowTypesHoldTheRoundedFloats) {
  const RandomInputs inputs{.seed = 4, .stream = 5};
  const Tensor wide = empty({9, 33});
  random_fill(*device_, wide, inputs);
  EXPECT_EQ(drawn({9, 33}, inputs, DType::kBF16), read(*device_, cast(*device_, wide, DType::kBF16, anyone())));
}

TEST_F(RandomFill, EmptyTensorsDrawNothing) {
  const Tensor none = empty({0, 8});
  random_fill(*device_, none, {.seed = 1});
  EXPECT_EQ(dropout(*device_, none, {.probability = 0.5f}, anyone()).shape(), (Shape{0, 8}));
}

TEST_F(RandomFill, RefusesANegativeOffset) {
  const Tensor x = empty({2, 3});
  EXPECT_EQ(support::error_of([&] { random_fill(*device_, x, {.row_offset = -1}); }),
            "random_fill: row_offset must not be negative");
}

}  // namespace
}  // namespace fp8lab

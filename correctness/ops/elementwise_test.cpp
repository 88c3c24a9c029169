#include "ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "reference/compare.h"
#include "reference/dense_reference.h"
#include "reference/test_data.h"
#include "support/dense.h"

namespace fp8lab {
namespace {

using reference::Expected;
using reference::kUnit;
using reference::Values;
using support::make_tensor;
using support::read;

class Elementwise : public ::testing::Test {
 protected:
  Tensor gaussian(const Shape& shape, DType dtype = DType::kF32, std::uint64_t seed = 1) {
    return make_tensor(*device_, shape, dtype, reference::gaussian_values(shape.numel(), seed));
  }
  Tensor empty(const Shape& shape, DType dtype = DType::kF32) { return device_->allocate({shape, dtype}, anyone()); }
  HolderId anyone() { return support::anyone(*device_); }
  std::unique_ptr<Device> device_ = support::open_poisoned_cpu();
};

TEST_F(Elementwise, FillReachesExactlyItsElements) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor whole = gaussian({5, 3000}, dtype);
    Values expected = read(*device_, whole);
    fill(*device_, whole.columns(100, 2500), 0.5f);
    for (std::size_t i = 0; i < expected.size(); ++i)
      if (i % 3000 >= 100 && i % 3000 < 2600) expected[i] = 0.5;
    EXPECT_EQ(read(*device_, whole), expected);
  }
}

TEST_F(Elementwise, CastRoundsOnceAndWidensExactly) {
  const Tensor x = gaussian({7, 501});
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Tensor narrow = cast(*device_, x, dtype, anyone());
    Expected expected(static_cast<std::size_t>(x.numel()));
    expected.value = read(*device_, x);
    EXPECT_TRUE(all_within(read(*device_, narrow), rounded_to(dtype, expected)));
    EXPECT_TRUE(refuses_mutations(rounded_to(dtype, expected)));
    const Tensor wide = cast(*device_, narrow, DType::kF32, anyone());
    EXPECT_EQ(read(*device_, wide), read(*device_, narrow));
  }
}

TEST_F(Elementwise, CastToTheSameTypeCopiesBits) {
  const Tensor codes = empty({16, 16}, DType::kE4M3);
  for (int i = 0; i < 256; ++i) codes.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(i);
  EXPECT_EQ(device_->read_bytes(cast(*device_, codes, DType::kE4M3, anyone())), device_->read_bytes(codes));

  const Tensor turned = cast(*device_, codes.transposed(), DType::kE4M3, anyone());
  EXPECT_TRUE(turned.contiguous());
  for (int i = 0; i < 256; ++i) EXPECT_EQ(turned.data<std::uint8_t>()[i], (i % 16) * 16 + i / 16);
}

TEST_F(Elementwise, CopyIntoTakesAnyStrides) {
  const Tensor from = gaussian({6, 10}, DType::kBF16);
  const Tensor wide = gaussian({10, 9}, DType::kF32, 2);
  const Values before = read(*device_, wide);
  copy_into(*device_, from, wide.columns(2, 6).transposed());
  const Values after = read(*device_, wide), values = read(*device_, from);
  for (std::size_t i = 0; i < 10; ++i)
    for (std::size_t j = 0; j < 9; ++j)
      EXPECT_EQ(after[i * 9 + j], j >= 2 && j < 8 ? values[(j - 2) * 10 + i] : before[i * 9 + j]);
}

TEST_F(Elementwise, AddRoundsOnce) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor a = gaussian({3, 2050}, dtype, 1), b = gaussian({3, 2050}, dtype, 2);
    Expected expected(static_cast<std::size_t>(a.numel()));
    const Values as = read(*device_, a), bs = read(*device_, b);
    for (std::size_t i = 0; i < as.size(); ++i) {
      expected.value[i] = as[i] + bs[i];
      // The sum of two bf16 values is rounded to FP32 before it is rounded again.
      expected.error[i] = dtype == DType::kF32 ? 0.0 : kUnit * std::fabs(expected.value[i]);
    }
    expected = rounded_to(dtype, expected);
    EXPECT_TRUE(all_within(read(*device_, add(*device_, a, b, anyone())), expected));
    EXPECT_TRUE(refuses_mutations(expected));
    add_into(*device_, a, b);
    EXPECT_TRUE(all_within(read(*device_, a), expected));
    EXPECT_EQ(read(*device_, b), bs);
  }
}

TEST_F(Elementwise, AddKernelWeighsItsTerms) {
  const Tensor a = gaussian({4, 9}, DType::kF32, 1), b = gaussian({9, 4}, DType::kBF16, 2), out = empty({4, 9});
  device_->launch(&KernelTable::add, AddArgs{.a = a.view(),
                                             .b = b.transposed().view(),
                                             .out = out.view(),
                                             .alpha = 0.25f,
                                             .beta = -3.0f});
  const Values as = read(*device_, a), bs = read(*device_, b.transposed());
  Expected expected(as.size());
  for (std::size_t i = 0; i < as.size(); ++i) {
    expected.value[i] = 0.25 * as[i] - 3.0 * bs[i];
    expected.error[i] = kUnit * (std::fabs(expected.value[i]) + std::fabs(3.0 * bs[i]));
  }
  EXPECT_TRUE(all_within(read(*device_, out), rounded_to(DType::kF32, expected)));
}

// rows - 1 additions in FP32.
TEST_F(Elementwise, ColumnSumIsWithinTheBoundOfItsAdditions) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::int64_t rows = 130, cols = 37;
    const Tensor x = gaussian({rows, cols + 3}, dtype).columns(3, cols);
    const Values values = read(*device_, x);
    Expected expected(static_cast<std::size_t>(cols));
    for (std::size_t i = 0; i < values.size(); ++i) {
      expected.value[i % cols] += values[i];
      expected.error[i % cols] += static_cast<double>(rows - 1) * kUnit * std::fabs(values[i]);
    }
    const Tensor sums = column_sum(*device_, x, dtype, anyone());
    EXPECT_EQ(sums.shape(), (Shape{cols}));
    EXPECT_TRUE(all_within(read(*device_, sums), rounded_to(dtype, expected)));
    EXPECT_TRUE(refuses_mutations(rounded_to(dtype, expected)));
  }
  EXPECT_EQ(read(*device_, column_sum(*device_, empty({0, 3}), DType::kF32, anyone())), Values(3, 0.0));
}

struct RopeCase {
  reference::RopeProblem problem;
  DType dtype;
};
constexpr RopeCase kRopeCases[] = {
    {{.seq = 1, .batch = 1, .heads = 1, .head_dim = 2, .base = 10000.0}, DType::kF32},
    {{.seq = 9, .batch = 3, .heads = 4, .head_dim = 16, .base = 10000.0}, DType::kF32},
    {{.seq = 300, .batch = 2, .heads = 1, .head_dim = 6, .base = 500000.0}, DType::kF32},
    {{.seq = 9, .batch = 3, .heads = 4, .head_dim = 16, .base = 10000.0}, DType::kBF16},
};

class Rope : public Elementwise {
 protected:
  static RopeInputs inputs(const RopeCase& c, const Tensor& x, bool inverse = false) {
    return {.x = x, .batch = c.problem.batch, .heads = c.problem.heads, .base = c.problem.base, .inverse = inverse};
  }
  Tensor tokens(const RopeCase& c, std::uint64_t seed) {
    return gaussian({c.problem.seq * c.problem.batch, c.problem.heads * c.problem.head_dim}, c.dtype, seed);
  }
};

TEST_F(Rope, TurnsEachPairByItsPosition) {
  for (const RopeCase& c : kRopeCases) {
    const Tensor x = tokens(c, 1);
    const Expected expected = rounded_to(c.dtype, reference::rope(c.problem, read(*device_, x)));
    EXPECT_TRUE(all_within(read(*device_, rope(*device_, inputs(c, x))), expected));
    EXPECT_TRUE(refuses_mutations(expected));
  }
}

TEST_F(Rope, ThePositionIsTheTokenDividedByTheBatch) {
  const RopeCase c{{.seq = 4, .batch = 3, .heads = 1, .head_dim = 4, .base = 10000.0}, DType::kF32};
  Tensor x = empty({12, 4});
  fill(*device_, x, 1.0f);
  const Values y = read(*device_, rope(*device_, inputs(c, x)));
  for (std::size_t token = 0; token < 12; ++token) {
    const double position = static_cast<double>(token / 3);
    EXPECT_NEAR(y[4 * token], std::cos(position) - std::sin(position), 1e-6);
    EXPECT_NEAR(y[4 * token + 2], std::cos(position) + std::sin(position), 1e-6);
  }
}

// Two rotations of 3 roundings each on sums of two terms; a pair's length therefore too.
TEST_F(Rope, TheInverseTurnsBackAndLengthsStay) {
  const RopeCase& c = kRopeCases[1];
  const Tensor x = tokens(c, 1);
  const Tensor turned = rope(*device_, inputs(c, x));
  const Values back = read(*device_, rope(*device_, inputs(c, turned, true)));
  const Values xs = read(*device_, x), ys = read(*device_, turned);
  const std::size_t half = static_cast<std::size_t>(c.problem.head_dim / 2);
  double largest_change = 0.0;
  for (std::size_t i = 0; i < xs.size(); ++i) {
    if (i / half % 2 == 1) continue;
    const double length = std::hypot(xs[i], xs[i + half]);
    EXPECT_NEAR(std::hypot(ys[i], ys[i + half]), length, 6.0 * kUnit * length);
    EXPECT_NEAR(back[i], xs[i], 12.0 * kUnit * length);
    EXPECT_NEAR(back[i + half], xs[i + half], 12.0 * kUnit * length);
    largest_change = std::max(largest_change, std::fabs(ys[i] - xs[i]));
  }
  EXPECT_GT(largest_change, 0.5);
}

// A linear map's gradient is its adjoint: <R x, g> = <x, R^T g>.
TEST_F(Rope, TheInverseIsTheGradient) {
  for (const RopeCase& c : kRopeCases) {
    if (c.dtype != DType::kF32) continue;
    const Tensor x = tokens(c, 1), g = tokens(c, 2);
    const Values xs = read(*device_, x), gs = read(*device_, g);
    const Values forward = read(*device_, rope(*device_, inputs(c, x)));
    const Values backward = read(*device_, rope(*device_, inputs(c, g, true)));
    double left = 0.0, right = 0.0, magnitude = 0.0;
    for (std::size_t i = 0; i < xs.size(); ++i) {
      left += forward[i] * gs[i];
      right += xs[i] * backward[i];
      magnitude += std::fabs(forward[i] * gs[i]) + std::fabs(xs[i] * backward[i]);
    }
    EXPECT_NEAR(left, right, 6.0 * kUnit * magnitude);
  }
}

TEST_F(Rope, TurnsColumnsOfAPackedTensorInPlace) {
  const RopeCase& c = kRopeCases[1];
  const Tensor packed = gaussian({27, 100});
  const Tensor part = packed.columns(10, 64);
  const Tensor apart = rope(*device_, inputs(c, part));
  Values expected = read(*device_, packed);
  const Values turned = read(*device_, apart);
  for (std::size_t i = 0; i < 27; ++i)
    for (std::size_t j = 0; j < 64; ++j) expected[i * 100 + 10 + j] = turned[i * 64 + j];
  rope_into(*device_, inputs(c, part), part);
  EXPECT_EQ(read(*device_, packed), expected);
}

TEST_F(Rope, RefusalsNameTheRule) {
  const Tensor x = gaussian({6, 12});
  const auto refusal = [&](std::int64_t batch, std::int64_t heads) {
    return support::error_of([&] { rope(*device_, {.x = x, .batch = batch, .heads = heads}); });
  };
  EXPECT_EQ(refusal(4, 2), "rope: x is f32 [6, 12] with batch 4; its rows are positions times sequences");
  EXPECT_EQ(refusal(3, 4), "rope: x is f32 [6, 12] with 4 heads; each head takes an even number of columns");
  EXPECT_EQ(refusal(0, 2), "rope: x is f32 [6, 12] with batch 0; its rows are positions times sequences");
  EXPECT_EQ(support::error_of([&] { rope_into(*device_, {.x = x, .batch = 3, .heads = 2}, gaussian({6, 6})); }),
            "rope: x is f32 [6, 12] and out is f32 [6, 6]; both must have one shape");
}

class Dropout : public Elementwise {
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

// The number kept is binomial: within five standard deviations, but for one seed in two million.
TEST_F(Dropout, KeepsTheAskedFractionAndScalesIt) {
  const std::int64_t count = 200 * 1000;
  for (const float probability : {0.1f, 0.5f, 0.9f}) {
    const Values y = kept({200, 1000}, {.probability = probability, .seed = 3, .stream = 4});
    double kept_count = 0.0;
    for (const double value : y) {
      if (value == 0.0) continue;
      kept_count += 1.0;
      ASSERT_EQ(value, double{1.0f / (1.0f - probability)});
    }
    const double p = probability;
    const double deviation = std::sqrt(static_cast<double>(count) * p * (1.0 - p));
    EXPECT_NEAR(kept_count, static_cast<double>(count) * (1.0 - p), 5.0 * deviation);
  }
  EXPECT_EQ(kept({3, 5}, {.probability = 0.0f, .seed = 3}), Values(15, 1.0));
}

TEST_F(Dropout, AShardDrawsItsSliceOfTheWholeMask) {
  const DropoutKey key{.probability = 0.4f, .seed = 5, .stream = 6};
  const Values whole = kept({30, 2049}, key);
  for (const std::int64_t first : {0, 1, 17}) {
    DropoutKey shard = key;
    shard.row_offset = first;
    const Values part = kept({9, 2049}, shard);
    const auto begin = whole.begin() + first * 2049;
    EXPECT_EQ(part, Values(begin, begin + 9 * 2049));
  }
  const Tensor wide = ones({30, 3000});
  EXPECT_EQ(read(*device_, dropout(*device_, wide.columns(500, 2049), key, anyone())), whole);
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

// With the mask fixed dropout is linear and diagonal, so its gradient is itself: <D x, g> = <x, D g>, element by element.
TEST_F(Dropout, IsItsOwnGradient) {
  const DropoutKey key{.probability = 0.3f, .seed = 8, .stream = 9};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor g = gaussian({12, 65}, dtype);
    const Values mask = kept({12, 65}, key), gs = read(*device_, g);
    Expected expected(gs.size());
    for (std::size_t i = 0; i < gs.size(); ++i) {
      expected.value[i] = mask[i] == 0.0 ? 0.0 : gs[i] / (1.0 - double{0.3f});
      expected.error[i] = 2.0 * kUnit * std::fabs(expected.value[i]);
    }
    expected = rounded_to(dtype, expected);
    EXPECT_TRUE(all_within(read(*device_, dropout(*device_, g, key, anyone())), expected));
    EXPECT_TRUE(refuses_mutations(expected));
  }
}

TEST_F(Dropout, DropsNanToo) {
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

class RandomFill : public Elementwise {
 protected:
  Values drawn(const Shape& shape, const RandomInputs& inputs, DType dtype = DType::kF32) {
    const Tensor out = empty(shape, dtype);
    random_fill(*device_, out, inputs);
    return read(*device_, out);
  }
};

TEST_F(RandomFill, AShardIsItsSliceOfTheWhole) {
  for (const bool normal : {true, false}) {
    RandomInputs inputs{.seed = 11, .stream = 12, .normal = normal, .scale = 0.02f};
    const Values whole = drawn({20, 3001}, inputs);
    for (const std::int64_t first : {0, 3, 13}) {
      inputs.row_offset = first;
      const auto begin = whole.begin() + first * 3001;
      EXPECT_EQ(drawn({7, 3001}, inputs), Values(begin, begin + 7 * 3001));
    }
    const Tensor wide = empty({20, 4000});
    inputs.row_offset = 0;
    random_fill(*device_, wide.columns(7, 3001), inputs);
    EXPECT_EQ(read(*device_, wide.columns(7, 3001)), whole);
  }
}

// Of n draws the mean deviates by sd / sqrt(n); the variance of a normal by sqrt(2 / n) of it, of a uniform by sqrt(0.8 / n).
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

TEST_F(RandomFill, SeedsAndStreamsAreUnrelated) {
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

TEST_F(Elementwise, EmptyTensorsGiveEmptyTensors) {
  const Tensor none = empty({0, 8});
  EXPECT_EQ(cast(*device_, none, DType::kBF16, anyone()).shape(), (Shape{0, 8}));
  EXPECT_EQ(add(*device_, none, none, anyone()).shape(), (Shape{0, 8}));
  EXPECT_EQ(rope(*device_, {.x = none, .batch = 2, .heads = 2}).shape(), (Shape{0, 8}));
  EXPECT_EQ(dropout(*device_, none, {.probability = 0.5f}, anyone()).shape(), (Shape{0, 8}));
  fill(*device_, none, 1.0f);
  random_fill(*device_, none, {.seed = 1});
}

TEST_F(Elementwise, RefusalsNameTheArgumentAndTheRule) {
  const Tensor x = gaussian({2, 3}), y = gaussian({3, 2}), codes = empty({2, 3}, DType::kE4M3);
  EXPECT_EQ(support::error_of([&] { add(*device_, x, y, anyone()); }),
            "add: a is f32 [2, 3] and b is f32 [3, 2]; both must have one shape");
  EXPECT_EQ(support::error_of([&] { add_into(*device_, x, {}); }),
            "add_into: b is absent; it must be an f32, f16 or bf16 tensor");
  EXPECT_EQ(support::error_of([&] { copy_into(*device_, x, y); }),
            "copy_into: from is f32 [2, 3] and to is f32 [3, 2]; both must have one shape");
  EXPECT_EQ(support::error_of([&] { cast(*device_, x, DType::kE4M3, anyone()); }),
            "cast: to e4m3; only f32, f16 and bf16 need no scale");
  EXPECT_EQ(support::error_of([&] { cast(*device_, codes, DType::kF32, anyone()); }),
            "cast: x is e4m3 [2, 3]; it must be an f32, f16 or bf16 tensor");
  EXPECT_EQ(support::error_of([&] { column_sum(*device_, x, DType::kI32, anyone()); }),
            "column_sum: to i32; the sums are f32, f16 or bf16");
  EXPECT_EQ(support::error_of([&] { fill(*device_, codes, 1.0f); }),
            "fill: out is e4m3 [2, 3]; it must be an f32, f16 or bf16 tensor");
  EXPECT_EQ(support::error_of([&] { random_fill(*device_, x, {.row_offset = -1}); }),
            "random_fill: row_offset must not be negative");
}

}  // namespace
}  // namespace fp8lab

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/elementwise.h"
#include "reference/dense_reference.h"
#include "support/dense_test.h"

namespace fp8lab {
namespace {

using reference::Expected;
using reference::kUnit;
using reference::Values;
using support::read;

struct RopeCase {
  reference::RopeProblem problem;
  DType dtype;
};
constexpr RopeCase kRopeCases[] = {
    {{.seq = 1, .batch = 1, .heads = 1, .head_dim = 2, .base = 10000.0}, DType::kF32},
    {{.seq = 9, .batch = 3, .heads = 4, .head_dim = 16, .base = 10000.0}, DType::kF32},
    {{.seq = 300, .batch = 2, .heads = 1, .head_dim = 6, .base = 500000.0}, DType::kF32},
    {{.seq = 5000, .batch = 1, .heads = 1, .head_dim = 4, .base = 3.0},
     DType::kF32},  // angles that need double precision
    {{.seq = 9, .batch = 3, .heads = 4, .head_dim = 16, .base = 10000.0}, DType::kBF16},
};

class Rope : public support::DenseTest {
 protected:
  static RopeInputs inputs(const RopeCase& c, const Tensor& x, bool inverse = false) {
    return {.x = x, .batch = c.problem.batch, .heads = c.problem.heads, .base = c.problem.base, .inverse = inverse};
  }
  Tensor tokens(const RopeCase& c, std::uint64_t seed) {
    return gaussian({c.problem.seq * c.problem.batch, c.problem.heads * c.problem.head_dim}, c.dtype, seed);
  }
};

TEST_F(Rope, RotatesEachPairByItsPosition) {
  for (const RopeCase& c : kRopeCases) {
    const Tensor x = tokens(c, 1);
    const Expected expected = rounded_to(c.dtype, reference::rope(c.problem, read(*device_, x)));
    EXPECT_TRUE(all_within(read(*device_, rope(*device_, inputs(c, x))), expected));
    EXPECT_TRUE(refuses_mutations(expected));
  }
}

TEST_F(Rope, PositionIsTheTokenDividedByTheBatch) {
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

// Two rotations of 3 roundings each on sums of two terms; a pair's length has the same error.
TEST_F(Rope, InverseRotatesBackAndLengthsStay) {
  const RopeCase& c = kRopeCases[1];
  const Tensor x = tokens(c, 1);
  const Tensor rotated = rope(*device_, inputs(c, x));
  const Values back = read(*device_, rope(*device_, inputs(c, rotated, true)));
  const Values xs = read(*device_, x), ys = read(*device_, rotated);
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
TEST_F(Rope, InverseIsTheGradient) {
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

TEST_F(Rope, RotatesColumnsOfAPackedTensorInPlace) {
  const RopeCase& c = kRopeCases[1];
  const Tensor packed = gaussian({27, 100});
  const Tensor part = packed.columns(10, 64);
  const Tensor apart = rope(*device_, inputs(c, part));
  Values expected = read(*device_, packed);
  const Values rotated = read(*device_, apart);
  for (std::size_t i = 0; i < 27; ++i)
    for (std::size_t j = 0; j < 64; ++j) expected[i * 100 + 10 + j] = rotated[i * 64 + j];
  rope_into(*device_, inputs(c, part), part);
  EXPECT_EQ(read(*device_, packed), expected);
}

TEST_F(Rope, AnEmptyTensorGivesAnEmptyTensor) {
  EXPECT_EQ(rope(*device_, {.x = empty({0, 8}), .batch = 2, .heads = 2}).shape(), (Shape{0, 8}));
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

}  // namespace
}  // namespace fp8lab

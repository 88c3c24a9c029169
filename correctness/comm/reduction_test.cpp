#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "comm/ranks.h"
#include "reference/compare.h"

// Sums and maxima, bit for bit.
namespace fp8lab::comm_test {
namespace {

using reference::bitwise_equal;

constexpr float kInf = std::numeric_limits<float>::infinity();

class Reductions : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Reductions, testing::ValuesIn(rank_counts()), testing::PrintToStringParamName());

/// The nearest BF16, ties to even, by arithmetic on the value; for normal values of moderate size.
std::uint16_t nearest_bf16(float x) {
  if (x == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(static_cast<double>(x), &exponent);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(rounded)) >> 16);
}

std::vector<std::uint16_t> nearest_bf16(std::span<const float> values) {
  std::vector<std::uint16_t> nearest;
  for (const float value : values) nearest.push_back(nearest_bf16(value));
  return nearest;
}

std::vector<float> bf16_values(std::uint64_t seed, int rank, std::int64_t count) {
  std::vector<float> values = test_values(seed, rank, count);
  for (float& value : values) value = std::bit_cast<float>(std::uint32_t{nearest_bf16(value)} << 16);
  return values;
}

using ValuesOfRank = std::vector<float> (*)(std::uint64_t seed, int rank, std::int64_t count);

template <class Op>
std::vector<float> in_rank_order(Op op, int ranks, ValuesOfRank values, std::uint64_t seed, std::int64_t count) {
  std::vector<float> result = values(seed, 0, count);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::vector<float> next = values(seed, rank, count);
    std::transform(result.begin(), result.end(), next.begin(), result.begin(), op);
  }
  return result;
}
std::vector<float> sums_in_rank_order(int ranks, ValuesOfRank values, std::uint64_t seed, std::int64_t count) {
  return in_rank_order(std::plus<>(), ranks, values, seed, count);
}

template <class Element>
void fill(Guarded<Element>& tensor, const std::vector<Element>& values) {
  std::copy(values.begin(), values.end(), tensor.elements().begin());
}

/// Reduces one value per rank, as f32, and returns the bits every rank got.
std::uint32_t reduce_f32(int ranks, ReduceOp op, const std::vector<std::uint32_t>& bits_of_rank) {
  std::vector<std::uint32_t> results(static_cast<std::size_t>(ranks));
  std::uint32_t result = 0;
  on_ranks(ranks, [&](ProcessGroup& group) {
    std::uint32_t bits = bits_of_rank[static_cast<std::size_t>(group.rank())];
    const ReducePart part{.data = reinterpret_cast<std::byte*>(&bits), .elems = 1};
    group.all_reduce(op, {&part, 1}, "x");
    results[static_cast<std::size_t>(group.rank())] = bits;
    if (group.rank() == 0 || launched_ranks() > 0) result = bits;
  });
  if (row() == "in_process") {
    for (const std::uint32_t bits : results) EXPECT_EQ(bits, result);
  }
  return result;
}

TEST_P(Reductions, ScattersSumsOfUnevenTensorsOfTwoTypes) {
  for (const Sharing& sharing : std::span(kSharings).first(5)) {
    const std::vector<std::int64_t> offsets = sharing.offsets(GetParam());
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      const std::int64_t first = offsets[rank];
      const std::int64_t own = offsets[rank + 1] - first;
      Guarded<float> wide(offsets.back());
      Guarded<std::uint16_t> narrow(offsets.back());
      fill(wide, test_values(5, group.rank(), offsets.back()));
      fill(narrow, nearest_bf16(test_values(6, group.rank(), offsets.back())));
      Guarded<float> wide_sum(own);
      Guarded<std::uint16_t> narrow_sum(own);
      const std::array<ScatterPart, 2> parts = {
          ScatterPart{.from = wide.bytes(), .to = wide_sum.bytes(), .offsets_elems = offsets, .dtype = DType::kF32},
          ScatterPart{
              .from = narrow.bytes(), .to = narrow_sum.bytes(), .offsets_elems = offsets, .dtype = DType::kBF16}};
      group.reduce_scatter(parts, "grads");
      const auto of_rank = [&](const std::vector<float>& sums) {
        return std::span(sums).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(own));
      };
      const std::vector<float> wide_sums = sums_in_rank_order(group.size(), test_values, 5, first + own);
      const std::vector<float> narrow_sums = sums_in_rank_order(group.size(), bf16_values, 6, first + own);
      EXPECT_TRUE(bitwise_equal(std::span<const float>(wide_sum.elements()), of_rank(wide_sums))) << sharing.name;
      EXPECT_TRUE(bitwise_equal(narrow_sum.elements(), nearest_bf16(of_rank(narrow_sums)))) << sharing.name;
      EXPECT_TRUE(wide_sum.guards_intact() && narrow_sum.guards_intact() && wide.guards_intact()) << sharing.name;
    });
  }
}

TEST_P(Reductions, ScattersInPlace) {
  const std::vector<std::int64_t> offsets = kSharings[1].offsets(GetParam());
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Guarded<float> values(offsets.back());
    std::vector<float> expected = test_values(7, group.rank(), offsets.back());
    fill(values, expected);
    const ScatterPart part{.from = values.bytes(), .to = values.bytes_from(offsets[rank]), .offsets_elems = offsets};
    group.reduce_scatter({&part, 1}, "g");
    const std::vector<float> sums = sums_in_rank_order(group.size(), test_values, 7, offsets.back());
    std::copy(sums.begin() + offsets[rank], sums.begin() + offsets[rank + 1], expected.begin() + offsets[rank]);
    EXPECT_TRUE(bitwise_equal(values.elements(), expected));
    EXPECT_TRUE(values.guards_intact());
  });
}

// Sizes around the sizes of the slices into which ranks divide the work. Without the largest tensor it is so little
// that ranks which are processes do not divide it.
TEST_P(Reductions, AllReducesTensorsOfEverySizeInOneCall) {
  constexpr std::array<std::int64_t, 9> kElems = {0, 1, 15, 16, 17, 31, 1000, 4099, 70'001};
  const auto all_reduce = [&](ProcessGroup& group, std::span<const std::int64_t> elems) {
    std::vector<Guarded<float>> tensors;
    std::vector<ReducePart> parts;
    for (std::size_t t = 0; t < elems.size(); ++t) {
      Guarded<float>& tensor = tensors.emplace_back(elems[t]);
      fill(tensor, test_values(20 + t, group.rank(), elems[t]));
      parts.push_back({.data = tensor.bytes(), .elems = elems[t]});
    }
    group.all_reduce(ReduceOp::kSum, parts, "grads");
    for (std::size_t t = 0; t < elems.size(); ++t) {
      const std::vector<float> expected = sums_in_rank_order(group.size(), test_values, 20 + t, elems[t]);
      EXPECT_TRUE(bitwise_equal(tensors[t].elements(), expected)) << elems[t] << " elements on rank " << group.rank();
      EXPECT_TRUE(tensors[t].guards_intact());
    }
  };
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    all_reduce(group, kElems);
    all_reduce(group, std::span(kElems).first(kElems.size() - 1));
  });
}

// 2^24 + 1 is a tie that rounds to 2^24: a 1 added after 2^24 vanishes, a 1 added before it counts.
TEST_P(Reductions, SumsInRankOrder) {
  const int ranks = GetParam();
  std::vector<std::uint32_t> large_first(static_cast<std::size_t>(ranks), std::bit_cast<std::uint32_t>(1.0f));
  std::vector<std::uint32_t> large_last = large_first;
  large_first.front() = large_last.back() = std::bit_cast<std::uint32_t>(0x1p24f);
  EXPECT_EQ(reduce_f32(ranks, ReduceOp::kSum, large_first), std::bit_cast<std::uint32_t>(0x1p24f));
  // 2^24 + ones; an odd number of ones rounds to even.
  const float ones = ranks == 1 ? 0.0f : static_cast<float>(ranks - 1);
  const std::uint32_t expected = std::bit_cast<std::uint32_t>(ones + 0x1p24f);
  EXPECT_EQ(reduce_f32(ranks, ReduceOp::kSum, large_last), expected);
  if (ranks > 2) {
    EXPECT_NE(expected, std::bit_cast<std::uint32_t>(0x1p24f));
  }
}

// From 256 on BF16 has even numbers only: 1 would vanish in every addition, if each were rounded.
TEST_P(Reductions, SumsOfBf16AreRoundedOnce) {
  const float sum = 256.0f + static_cast<float>(GetParam() - 1);
  const std::uint16_t expected = nearest_bf16(sum);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    std::uint16_t value = nearest_bf16(group.rank() == 0 ? 256.0f : 1.0f);
    const ReducePart part{.data = reinterpret_cast<std::byte*>(&value), .elems = 1, .dtype = DType::kBF16};
    group.all_reduce(ReduceOp::kSum, {&part, 1}, "g");
    EXPECT_EQ(value, expected);
  });
  if (GetParam() == 4) {
    EXPECT_EQ(expected, nearest_bf16(260.0f));
  }
}

TEST_P(Reductions, OneNanOnAnyRankGivesTheSameQuietNan) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    for (const std::uint32_t nan : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu}) {
      for (const int place : {0, GetParam() / 2, GetParam() - 1}) {
        std::vector<std::uint32_t> bits(static_cast<std::size_t>(GetParam()), std::bit_cast<std::uint32_t>(kInf));
        bits[static_cast<std::size_t>(place)] = nan;
        EXPECT_EQ(reduce_f32(GetParam(), op, bits), 0x7FC00000u) << std::hex << nan << " on rank " << place;
      }
    }
  }
}

TEST_P(Reductions, InfinitiesAddAndCancel) {
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(GetParam()), std::bit_cast<std::uint32_t>(1.0f));
  bits.back() = std::bit_cast<std::uint32_t>(-kInf);
  EXPECT_EQ(reduce_f32(GetParam(), ReduceOp::kSum, bits), std::bit_cast<std::uint32_t>(-kInf));
  EXPECT_EQ(reduce_f32(GetParam(), ReduceOp::kMax, bits), std::bit_cast<std::uint32_t>(GetParam() == 1 ? -kInf : 1.0f));
  if (GetParam() == 1) GTEST_SKIP() << "one rank adds nothing";
  bits.front() = std::bit_cast<std::uint32_t>(kInf);
  EXPECT_EQ(reduce_f32(GetParam(), ReduceOp::kSum, bits), 0x7FC00000u);
  EXPECT_EQ(reduce_f32(GetParam(), ReduceOp::kMax, bits), std::bit_cast<std::uint32_t>(kInf));
}

TEST_P(Reductions, ZerosKeepTheirSigns) {
  const std::vector<std::uint32_t> minus(static_cast<std::size_t>(GetParam()), 0x80000000u);
  EXPECT_EQ(reduce_f32(GetParam(), ReduceOp::kSum, minus), 0x80000000u);
  EXPECT_EQ(reduce_f32(GetParam(), ReduceOp::kMax, minus), 0x80000000u);
  if (GetParam() == 1) GTEST_SKIP() << "one rank adds nothing";
  for (const std::size_t place : {std::size_t{0}, minus.size() - 1}) {
    std::vector<std::uint32_t> one_plus = minus;
    one_plus[place] = 0;
    EXPECT_EQ(reduce_f32(GetParam(), ReduceOp::kMax, one_plus), 0u) << "+0 on rank " << place;
  }
}

TEST_P(Reductions, SubnormalsSurvive) {
  const std::vector<std::uint32_t> smallest(static_cast<std::size_t>(GetParam()), 1u);
  EXPECT_EQ(reduce_f32(GetParam(), ReduceOp::kSum, smallest), static_cast<std::uint32_t>(GetParam()));
  EXPECT_EQ(reduce_f32(GetParam(), ReduceOp::kMax, smallest), 1u);
}

std::vector<std::int32_t> int_values(std::span<const float> values) {
  std::vector<std::int32_t> ints;
  for (const float value : values) ints.push_back(static_cast<std::int32_t>(1e6f * value));
  return ints;
}

TEST_P(Reductions, MaximaAreExactForEveryType) {
  constexpr std::int64_t kElems = 5000;
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    std::vector<float> wide = test_values(8, group.rank(), kElems);
    std::vector<std::uint16_t> narrow = nearest_bf16(test_values(9, group.rank(), kElems));
    std::vector<std::int32_t> ints = int_values(test_values(10, group.rank(), kElems));
    const auto bytes = [](auto& values) { return reinterpret_cast<std::byte*>(values.data()); };
    const std::array<ReducePart, 3> parts = {ReducePart{.data = bytes(wide), .elems = kElems, .dtype = DType::kF32},
                                             ReducePart{.data = bytes(narrow), .elems = kElems, .dtype = DType::kBF16},
                                             ReducePart{.data = bytes(ints), .elems = kElems, .dtype = DType::kI32}};
    group.all_reduce(ReduceOp::kMax, parts, "amax");
    const auto largest = [&](ValuesOfRank values, std::uint64_t seed) {
      return in_rank_order([](float left, float right) { return std::fmax(left, right); }, group.size(), values, seed,
                           kElems);
    };
    EXPECT_TRUE(bitwise_equal(wide, largest(test_values, 8)));
    EXPECT_TRUE(bitwise_equal(narrow, nearest_bf16(largest(bf16_values, 9))));
    EXPECT_TRUE(bitwise_equal(ints, int_values(largest(test_values, 10))));
  });
}

TEST_P(Reductions, IntegersWrapAround) {
  constexpr std::int32_t kMax32 = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t kMax64 = std::numeric_limits<std::int64_t>::max();
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    std::int32_t narrow = group.rank() == 0 ? kMax32 : 1;
    std::int64_t wide = group.rank() == 0 ? kMax64 : 1;
    const std::array<ReducePart, 2> parts = {
        ReducePart{.data = reinterpret_cast<std::byte*>(&narrow), .elems = 1, .dtype = DType::kI32},
        ReducePart{.data = reinterpret_cast<std::byte*>(&wide), .elems = 1, .dtype = DType::kI64}};
    group.all_reduce(ReduceOp::kSum, parts, "counts");
    if (group.size() == 1) {
      EXPECT_EQ(narrow, kMax32);
      EXPECT_EQ(wide, kMax64);
    } else {
      EXPECT_EQ(narrow, std::numeric_limits<std::int32_t>::min() + (group.size() - 2));
      EXPECT_EQ(wide, std::numeric_limits<std::int64_t>::min() + (group.size() - 2));
    }
  });
}

}  // namespace
}  // namespace fp8lab::comm_test

// Conversions and block scales over every float, against references that search tables of exact values.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/float8.h"
#include "reference/e8m0_reference.h"
#include "reference/float8_reference.h"
#include "reference/parallel.h"
#include "reference/step_function.h"

namespace fp8lab {
namespace {

using reference::BitRange;
using reference::Mismatches;
using reference::SmallFloat;
using reference::StepFunction;

constexpr std::uint32_t kSignBit = 0x80000000u;

template <class Candidate>
Mismatches find_all_mismatches(const StepFunction& expected, Candidate candidate, BitRange range = {}) {
  constexpr std::uint32_t kChunk = 1u << 23;
  const std::uint32_t chunks = (range.last - range.first) / kChunk + 1;
  std::vector<Mismatches> found(chunks);
  reference::parallel_for(chunks, [&](std::uint32_t i) {
    const std::uint32_t first = range.first + i * kChunk;
    const std::uint32_t last = std::min(range.last - first, kChunk - 1) + first;
    found[i] = reference::find_mismatches(expected, {first, last}, candidate);
  });
  Mismatches all;
  for (const Mismatches& part : found) {
    all.count += part.count;
    all.first_bits = std::min(all.first_bits, part.first_bits);
  }
  return all;
}

template <class Candidate>
void expect_equal_for_all_floats(reference::SmallFloatLayout layout, Candidate candidate) {
  const SmallFloat expected(layout);
  const Mismatches positive = find_all_mismatches(
      expected.steps(false), [&](std::uint32_t bits) { return std::uint32_t{candidate(float_from_bits(bits))}; });
  EXPECT_EQ(positive.count, 0u) << "first at bits " << std::hex << positive.first_bits;
  const Mismatches negative = find_all_mismatches(expected.steps(true), [&](std::uint32_t bits) {
    return std::uint32_t{candidate(float_from_bits(bits | kSignBit))};
  });
  EXPECT_EQ(negative.count, 0u) << "first at bits " << std::hex << (negative.first_bits | kSignBit);
}

TEST(ExhaustiveConversion, F32ToE4M3) {
  expect_equal_for_all_floats(reference::kE4M3Layout, [](float x) { return f32_to_e4m3(x); });
}
TEST(ExhaustiveConversion, F32ToE5M2) {
  expect_equal_for_all_floats(reference::kE5M2Layout, [](float x) { return f32_to_e5m2(x); });
}
TEST(ExhaustiveConversion, F32ToBF16) {
  expect_equal_for_all_floats(reference::kBFloat16Layout, [](float x) { return f32_to_bf16(x).bits; });
}
TEST(ExhaustiveConversion, F32ToF16) {
  expect_equal_for_all_floats(reference::kFloat16Layout, [](float x) { return f32_to_f16(x).bits; });
}

template <class Format>
void expect_block_scales_equal(std::uint32_t documented_difference) {
  const StepFunction rceil = reference::e8m0_rceil_steps(Format::kMax);
  const auto rceil_byte = [](std::uint32_t bits) {
    return std::uint32_t{e8m0_rceil(float_from_bits(bits), Format::kMax)};
  };
  const Mismatches rounded_up = find_all_mismatches(rceil, rceil_byte);
  EXPECT_EQ(rounded_up.count, 1u);
  EXPECT_EQ(rounded_up.first_bits, documented_difference);
  EXPECT_EQ(e8m0_rceil(float_from_bits(documented_difference), Format::kMax), 0);

  const Mismatches rounded_down = find_all_mismatches(
      reference::e8m0_floor_steps(Format::kEmax),
      [](std::uint32_t bits) { return std::uint32_t{e8m0_floor(float_from_bits(bits), Format::kEmax)}; });
  EXPECT_EQ(rounded_down.count, 0u) << "first at bits " << std::hex << rounded_down.first_bits;

  // Scaled amaxes grow within a step, so that the largest amax of each step covers the others.
  for (const reference::Step& step : rceil) {
    if (step.value == kE8M0Nan) continue;
    const float scaled = float_from_bits(step.last_bits) * e8m0_multiplier(static_cast<std::uint8_t>(step.value));
    EXPECT_LE(scaled, Format::kMax) << "byte " << step.value;
  }
}

TEST(ExhaustiveBlockScale, E4M3) { expect_block_scales_equal<E4M3>(0x04600001); }
TEST(ExhaustiveBlockScale, E5M2) { expect_block_scales_equal<E5M2>(0x07E00001); }

// The checker must notice wrong conversions, and the number of mismatches must follow from arithmetic. E4M3 has 119
// values, 0x08 to 0x7E, in [2^-6, 448], and 118 midpoints between them; 2^20 float patterns lie between neighbours.
constexpr BitRange kE4M3NormalRange{0x3C800000, 0x43E00000};
constexpr std::uint64_t kMidpoints = 118;

template <class Mutant>
std::uint64_t count_e4m3_mismatches(Mutant mutant) {
  return find_all_mismatches(
             SmallFloat(reference::kE4M3Layout).steps(false),
             [&](std::uint32_t bits) { return std::uint32_t{mutant(bits)}; }, kE4M3NormalRange)
      .count;
}

TEST(ExhaustiveMutation, TruncationIsNoticed) {
  const auto truncate = [](std::uint32_t bits) { return f32_to_e4m3(float_from_bits(bits & ~0xFFFFFu)); };
  // Everything above a midpoint is wrong, and so is the midpoint itself if the 8-bit value below it is odd.
  EXPECT_EQ(count_e4m3_mismatches(truncate), kMidpoints / 2 * ((1u << 19) - 1) + kMidpoints / 2 * (1u << 19));
}

TEST(ExhaustiveMutation, TiesAwayFromZeroAreNoticed) {
  const auto half_away = [](std::uint32_t bits) { return f32_to_e4m3(float_from_bits((bits + 0x80000u) & ~0xFFFFFu)); };
  EXPECT_EQ(count_e4m3_mismatches(half_away), kMidpoints / 2);
}

TEST(ExhaustiveMutation, RoundingTwiceIsNoticed) {
  // The first rounding moves a run of patterns to each midpoint. Those on the side of the odd 8-bit value, one of two,
  // then round to the wrong neighbour: 3.1% of all patterns through BF16, 0.39% through FP16.
  const auto via_bf16 = [](std::uint32_t bits) { return encode<E4M3>(f32_to_bf16(float_from_bits(bits))); };
  EXPECT_EQ(count_e4m3_mismatches(via_bf16), kMidpoints << 15);
  const auto via_f16 = [](std::uint32_t bits) { return encode<E4M3>(f32_to_f16(float_from_bits(bits))); };
  EXPECT_EQ(count_e4m3_mismatches(via_f16), kMidpoints << 12);
}

TEST(ExhaustiveMutation, BlockScaleUnderFlushToZeroIsNoticed) {
  // The amaxes whose quotient is a subnormal above 2^-127: those between 448 * 2^-127 and 448 * 2^-126, except the last
  // one, whose quotient rounds to a normal number.
  const auto flushed = [](std::uint32_t bits) {
    const float ratio = float_from_bits(bits) * (1.0f / E4M3::kMax);
    return std::uint32_t{ratio < 0x1p-126f ? std::uint8_t{0} : e8m0_rceil(float_from_bits(bits), E4M3::kMax)};
  };
  const Mismatches found = find_all_mismatches(reference::e8m0_rceil_steps(E4M3::kMax), flushed);
  EXPECT_EQ(found.count, (1u << 23) - 2);
  EXPECT_EQ(found.first_bits, 0x04600001u);
}

TEST(ExhaustiveMutation, BlockScaleOfRoundedAmaxIsNoticed) {
  // After rounding to BF16 the last 2^15 amaxes of a binade (from 0x437F8000 on) become the next power of two, and the
  // 2^15 just above 1.75 * 2^k (0x43600001 to 0x43608000) become 1.75 * 2^k.
  const auto floor_via_bf16 = [](std::uint32_t bits) {
    return std::uint32_t{e8m0_floor(bf16_to_f32(f32_to_bf16(float_from_bits(bits))), E4M3::kEmax)};
  };
  const BitRange one_binade{0x43000000, 0x437FFFFF};
  EXPECT_EQ(find_all_mismatches(reference::e8m0_floor_steps(E4M3::kEmax), floor_via_bf16, one_binade).count, 1u << 15);
  const auto rceil_via_bf16 = [](std::uint32_t bits) {
    return std::uint32_t{e8m0_rceil(bf16_to_f32(f32_to_bf16(float_from_bits(bits))), E4M3::kMax)};
  };
  EXPECT_EQ(find_all_mismatches(reference::e8m0_rceil_steps(E4M3::kMax), rceil_via_bf16, one_binade).count, 1u << 15);
}

}  // namespace
}  // namespace fp8lab

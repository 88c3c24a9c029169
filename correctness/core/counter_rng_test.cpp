#include "core/counter_rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

namespace fp8lab {
namespace {

constexpr std::uint64_t kCount = 1 << 18;

struct KnownAnswer {
  PhiloxBlock counter;
  std::uint32_t key0;
  std::uint32_t key1;
  PhiloxBlock words;
};

// Random123's published vectors for philox4x32 with 10 rounds.
constexpr KnownAnswer kKnownAnswers[] = {
    {{{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
    {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
     0xffffffff,
     0xffffffff,
     {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
    {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
     0xa4093822,
     0x299f31d0,
     {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
};

TEST(Philox, KnownAnswers) {
  for (const KnownAnswer& known : kKnownAnswers) {
    const PhiloxBlock words = philox4x32(known.counter, known.key0, known.key1);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(words.words[i], known.words.words[i]);
  }
}

TEST(CounterRng, MapsSeedStreamAndIndexToKeyAndCounter) {
  // The third vector through the class: key = seed, counter = (index / 4, stream), each low word first.
  const CounterRng rng(0x299f31d0a4093822, 0x0370734413198a2e);
  const PhiloxBlock block = rng.block(0x85a308d3243f6a88);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(block.words[i], kKnownAnswers[2].words.words[i]);
  const CounterRng other(11, 5);
  for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{7}, (std::uint64_t{1} << 33) + 2})
    EXPECT_EQ(other.bits(index), other.block(index / 4).words[index % 4]);
}

TEST(CounterRng, SeedStreamAndHighIndexBitsChangeTheNumbers) {
  const std::uint32_t base = CounterRng(1, 2).bits(3);
  EXPECT_NE(CounterRng(2, 2).bits(3), base);
  EXPECT_NE(CounterRng(1 + (std::uint64_t{1} << 32), 2).bits(3), base);
  EXPECT_NE(CounterRng(1, 3).bits(3), base);
  EXPECT_NE(CounterRng(1, 2 + (std::uint64_t{1} << 32)).bits(3), base);
  EXPECT_NE(CounterRng(1, 2).bits(3 + (std::uint64_t{1} << 34)), base);
}

TEST(CounterRng, UniformBounds) {
  EXPECT_EQ(CounterRng::to_unit(0), 0.0f);
  EXPECT_EQ(CounterRng::to_unit(0xFFFFFFFF), 1.0f - 0x1p-24f);
  EXPECT_EQ(CounterRng::to_positive_unit(0), 0x1p-24f);
  EXPECT_EQ(CounterRng::to_positive_unit(0xFFFFFFFF), 1.0f);
}

TEST(CounterRng, UniformMoments) {
  const CounterRng rng(42, 0);
  double mean = 0;
  double square = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double u = static_cast<double>(rng.uniform(i));
    mean += u / kCount;
    square += u * u / kCount;
  }
  // Five standard errors at 2^18 draws: 5 * 0.2887 / 512 and 5 * 0.2981 / 512.
  EXPECT_NEAR(mean, 1.0 / 2, 2.9e-3);
  EXPECT_NEAR(square, 1.0 / 3, 3.0e-3);
}

TEST(CounterRng, NormalIsTheBoxMullerTransformOfItsWords) {
  const CounterRng rng(3, 9);
  double worst = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const PhiloxBlock words = rng.block(i / 4);
    const std::uint64_t pair = i % 4 / 2 * 2;
    const double u = ((words.words[pair] >> 8) + 1.0) * 0x1p-24;
    // The top two bits give the quadrant, the next 24 the angle within it, measured from its middle.
    const double quadrant = words.words[pair + 1] >> 30;
    const double within = ((words.words[pair + 1] >> 6 & 0xFFFFFF) + 0.5) * 0x1p-24 - 0.5;
    const double angle = (quadrant + within) * std::numbers::pi / 2;
    const double expected = std::sqrt(-2 * std::log(u)) * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
    const double error = std::fabs(static_cast<double>(rng.normal(i)) - expected);
    if (!(error <= worst)) worst = error;
  }
  // A few float roundings of values below 5.8: 8 * 2^-24 * 5.8.
  EXPECT_LE(worst, 2.8e-6);
}

TEST(CounterRng, NormalMomentsAndDistribution) {
  const CounterRng rng(42, 1);
  std::vector<double> draws(kCount);
  double mean = 0;
  double square = 0;
  double fourth = 0;
  double neighbours = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double z = static_cast<double>(rng.normal(i));
    mean += z / kCount;
    square += z * z / kCount;
    fourth += z * z * z * z / kCount;
    if (i > 0) neighbours += z * draws[i - 1] / kCount;
    draws[i] = z;
  }
  // Five standard errors: 1, sqrt(2), sqrt(96) and 1, each over 512.
  EXPECT_NEAR(mean, 0, 9.8e-3);
  EXPECT_NEAR(square, 1, 1.4e-2);
  EXPECT_NEAR(fourth, 3, 9.6e-2);
  EXPECT_NEAR(neighbours, 0, 9.8e-3);

  std::sort(draws.begin(), draws.end());
  double distance = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) {
    const double cdf = std::erfc(-draws[i] / std::numbers::sqrt2) / 2;
    distance = std::max({distance, std::fabs(cdf - static_cast<double>(i) / kCount),
                         std::fabs(cdf - static_cast<double>(i + 1) / kCount)});
  }
  EXPECT_LT(distance, 1.95 / 512);  // Kolmogorov and Smirnov at the 0.1% level
}

// The bits are equal on every compiler, optimisation level and device.
TEST(CounterRng, NormalBitsHaveTheCommittedHash) {
  const CounterRng rng(1, 2);
  std::uint64_t hash = 14695981039346656037ull;  // FNV-1a over the words
  for (std::uint64_t i = 0; i < 4096; ++i) hash = (hash ^ float_bits(rng.normal(i))) * 1099511628211ull;
  EXPECT_EQ(hash, 13284621410114989751ull);
}

}  // namespace
}  // namespace fp8lab

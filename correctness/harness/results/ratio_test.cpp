#include "harness/results/ratio.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace fp8lab {
namespace {

constexpr std::size_t kProcesses = 8, kMostProcesses = 24;  // processes of an arm, see processes_of()

struct Figures {
  std::vector<double> after, before;
};

/// Step times of both arms on a shared machine: its speed drifts from round to round, each process differs by a share
/// `noise`, and one process in twelve is disturbed and takes up to a third longer.
Figures step_times(std::mt19937_64& random, double effect, double noise, std::size_t processes = kProcesses) {
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const auto process = [&](double ms) {
    const double disturbed = uniform(random) < 1.0 / 12 ? 1 + uniform(random) / 3 : 1;
    return ms * std::exp(noise * normal(random)) * disturbed;
  };
  Figures out;
  double machine = 20;
  for (std::size_t i = 0; i < processes; ++i) {
    machine *= std::exp(0.05 * normal(random));
    out.before.push_back(process(machine));
    out.after.push_back(process(machine * effect));
  }
  return out;
}

template <class Holds>
int count(int trials, double effect, double noise, std::size_t processes, const Holds& holds) {
  std::mt19937_64 random(20261123);
  int found = 0;
  for (int i = 0; i < trials; ++i) {
    const Figures figures = step_times(random, effect, noise, processes);
    const std::optional<Ratio> ratio = ratio_of(figures.after, figures.before);
    if (ratio && holds(*ratio)) ++found;
  }
  return found;
}

TEST(Ratio, OfEqualArmsIsOneInsideTheInterval) {
  // 99 % intervals of eight pairs: by the binomial distribution, at most 4 % are off if the ends are the second and the
  // seventh of the pairs, which the bootstrap's ends do not fall short of.
  const auto off = [](const Ratio& r) { return !(r.low <= 1 && 1 <= r.high); };
  EXPECT_LE(count(500, 1, 0.02, kProcesses, off), 500 * 4 / 100);
}

TEST(Ratio, OfEqualArmsPassesNoGateOfFivePercentByChance) {
  EXPECT_EQ(count(500, 1, 0.02, kProcesses, [](const Ratio& r) { return r.low > 1.05; }), 0);
}

TEST(Ratio, ShowsFivePercentInNineteenOfTwentyCells) {
  const auto shows = [](const Ratio& r) { return r.low > 1; };
  EXPECT_GE(count(500, 1.05, 0.01, kMostProcesses, shows), 500 * 95 / 100);
}

TEST(Ratio, SmallestVisibleChangeIsHalfTheIntervalAndHoldsTheTrueRatio) {
  std::mt19937_64 random(1);
  const Figures figures = step_times(random, 1.2, 0.02);
  const Ratio ratio = ratio_of(figures.after, figures.before).value();
  EXPECT_EQ(ratio.pairs, kProcesses);
  EXPECT_LE(ratio.low, ratio.value);
  EXPECT_LE(ratio.value, ratio.high);
  EXPECT_NEAR(ratio.visible, std::sqrt(ratio.high / ratio.low) - 1, 1e-12);
  EXPECT_LE(ratio.low, 1.2);
  EXPECT_GE(ratio.high, 1.2);
}

TEST(Ratio, IsThatOfPairsWhereTheMachineChangesBetweenRounds) {
  const std::vector<double> before{10, 20, 40, 80, 160, 320};
  std::vector<double> after;
  for (const double one : before) after.push_back(1.1 * one);
  const Ratio ratio = ratio_of(after, before).value();
  EXPECT_NEAR(ratio.low, 1.1, 1e-12);
  EXPECT_NEAR(ratio.high, 1.1, 1e-12);
}

TEST(Ratio, IsTheSameForTheSameFigures) {
  std::mt19937_64 random(2);
  const Figures figures = step_times(random, 1, 0.1);
  EXPECT_EQ(ratio_of(figures.after, figures.before), ratio_of(figures.after, figures.before));
}

TEST(Ratio, NeedsSixPairsOfFiguresAboveZero) {
  const std::vector<double> six(6, 3.0);
  EXPECT_TRUE(ratio_of(six, six));
  EXPECT_FALSE(ratio_of(std::vector<double>(5, 3.0), std::vector<double>(5, 3.0)));
  EXPECT_FALSE(ratio_of(six, std::vector<double>(7, 3.0)));
  for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    std::vector<double> with = six;
    with[3] = bad;
    EXPECT_FALSE(ratio_of(with, six)) << bad;
    EXPECT_FALSE(ratio_of(six, with)) << bad;
  }
}

}  // namespace
}  // namespace fp8lab

#pragma once

#include <cstddef>
#include <optional>
#include <vector>

// The ratio of two timed figures, with an interval. Pure functions.
namespace fp8lab {

/// Processes of each arm below which there is no interval: of five pairs even the extremes hold the median in 94 of 100
/// cases only.
inline constexpr std::size_t kFewestPairs = 6;

/// A ratio of figures that were measured in pairs, one of each in every round of processes.
struct Ratio {
  double value = 0;    ///< median over the rounds
  double low = 0;      ///< 99 % interval
  double high = 0;     ///< the same
  double visible = 0;  ///< the smallest change that would have shown, as a fraction: half the width of the interval
  std::size_t pairs = 0;

  friend bool operator==(const Ratio&, const Ratio&) = default;
};

/// The ratio figures[i] / references[i]. The interval is a percentile bootstrap of the median of log ratios; the same
/// figures always give the same interval. Rounds are paired because a machine that slows down slows both sides of a
/// round. Nothing if the sizes differ, there are fewer than kFewestPairs, or a figure is not above 0 (NaN is not).
std::optional<Ratio> ratio_of(const std::vector<double>& figures, const std::vector<double>& references);

}  // namespace fp8lab

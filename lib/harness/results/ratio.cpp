#include "harness/results/ratio.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include "harness/cell/median.h"

namespace fp8lab {
namespace {

constexpr std::size_t kResamples = 4000;
constexpr double kOutside = 0.005;  // on either side of the interval

}  // namespace

std::optional<Ratio> ratio_of(const std::vector<double>& figures, const std::vector<double>& references) {
  if (figures.size() != references.size() || figures.size() < kFewestPairs) return {};
  std::vector<double> logs;
  for (std::size_t i = 0; i < figures.size(); ++i) {
    if (!(figures[i] > 0) || !(references[i] > 0)) return {};
    logs.push_back(std::log(figures[i] / references[i]));
    if (!std::isfinite(logs.back())) return {};
  }
  std::mt19937_64 random(logs.size());
  std::vector<double> medians, drawn(logs.size());
  for (std::size_t k = 0; k < kResamples; ++k) {
    for (double& one : drawn) one = logs[static_cast<std::size_t>(random() % logs.size())];
    medians.push_back(median(drawn));
  }
  std::sort(medians.begin(), medians.end());
  const auto at = [&](double share) {
    return medians[static_cast<std::size_t>(std::lround(share * static_cast<double>(kResamples - 1)))];
  };
  const double low = at(kOutside), high = at(1 - kOutside);
  return Ratio{.value = std::exp(median(logs)),
               .low = std::exp(low),
               .high = std::exp(high),
               .visible = std::exp((high - low) / 2) - 1,
               .pairs = logs.size()};
}

}  // namespace fp8lab

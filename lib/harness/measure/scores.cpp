#include "harness/measure/scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "harness/measure/arms.h"

namespace fp8lab {

Noise& Noise::operator+=(const Noise& other) {
  signal += other.signal;
  noise += other.noise;
  return *this;
}

Noise noise_of(const std::vector<float>& reference, const std::vector<float>& values) {
  // Partial sums, so that additions do not wait for each other.
  std::array<Noise, 8> sums;
  const auto add = [&](std::size_t i, Noise& sum) {
    const double r = reference[i], d = r - values[i];
    sum += Noise{.signal = r * r, .noise = d * d};
  };
  std::size_t i = 0;
  for (; i + sums.size() <= reference.size(); i += sums.size())
    for (std::size_t k = 0; k < sums.size(); ++k) add(i + k, sums[k]);
  for (; i < reference.size(); ++i) add(i, sums[0]);
  return std::accumulate(sums.begin(), sums.end(), Noise{}, [](Noise a, const Noise& b) { return a += b; });
}

Decibels::Decibels(const Noise& sum) {
  if (!std::isfinite(sum.signal))
    reason = "a value of BF16's is not finite";
  else if (!std::isfinite(sum.noise))
    value = std::numeric_limits<double>::quiet_NaN(), reason = "a value is not finite";
  else if (sum.noise == 0.0)
    reason = "equal to BF16 bit for bit: no noise";
  else if (sum.signal == 0.0)
    reason = "BF16's is zero";
  else
    value = 10.0 * std::log10(sum.signal / sum.noise);
}

namespace {

/// Puts the noise of each tensor over all ranks, and returns it.
std::vector<Noise> put_noise_of_tensors(ArmResult& result, const std::string& of, const std::vector<std::string>& names,
                                        std::span<const Noise> ranks) {
  std::vector<Noise> all(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t j = i; j < ranks.size(); j += names.size()) all[i] += ranks[j];
    const Decibels db(all[i]);
    result.noise.push_back({.tensor = names[i], .of = of, .sqnr_db = db.value, .reason = db.reason});
  }
  return all;
}

}  // namespace

void put_noise(ArmResult& result, const std::string& metric, const std::string& of,
               const std::vector<std::string>& names, std::span<const Noise> ranks) {
  const std::vector<Noise> all = put_noise_of_tensors(result, of, names, ranks);
  const Decibels db(std::accumulate(all.begin(), all.end(), Noise{}, [](Noise a, const Noise& b) { return a += b; }));
  put(result.metrics, metric, db.value, db.reason);
}

void put_least_sqnr(ArmResult& result, const std::string& metric, const std::string& of,
                    const std::vector<std::string>& names, std::span<const Noise> ranks) {
  const std::vector<Noise> all = put_noise_of_tensors(result, of, names, ranks);
  std::optional<double> least;
  std::string reason = "no tensor has noise";
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Decibels db(all[i]);
    if (!db.value && !least && all[i].noise != 0.0) reason = fmt::format("{}: {}", names[i], db.reason);
    if (!db.value || (least && (std::isnan(*least) || *db.value >= *least))) continue;
    least = db.value;
    reason = std::isnan(*db.value) ? fmt::format("{}: {}", names[i], db.reason) : names[i] + " has the least";
  }
  put(result.metrics, metric, least, reason);
}

double squares_of(const Lists& values) {
  double sum = 0.0;
  for (const std::vector<float>& list : values)
    for (const float value : list) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

double squares_of_difference(const Lists& a, const Lists& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a[i].size(); ++j) {
      const double d = static_cast<double>(a[i][j]) - static_cast<double>(b[i][j]);
      sum += d * d;
    }
  return sum;
}

NormRatio::NormRatio(double squares, double squares_of_bf16) {
  if (!std::isfinite(squares_of_bf16))
    reason = "a value of BF16's is not finite";
  else if (squares_of_bf16 == 0.0)
    reason = "BF16's is zero";
  else if (!std::isfinite(squares))
    value = std::numeric_limits<double>::quiet_NaN(), reason = "a value is not finite";
  else
    value = std::sqrt(squares / squares_of_bf16);
}

LossProgress::LossProgress(const std::vector<double>& of_steps, const std::vector<ValidationLoss>& of_validations) {
  const bool validates = of_validations.size() > 1;
  const double first = validates ? of_validations.front().loss : of_steps.front();
  const double last = validates ? of_validations.back().loss : of_steps.back();
  if (!validates && of_steps.size() < 2)
    reason = "needs two steps";
  else if (first <= 0.0)
    reason = fmt::format("the first loss is {}", first);
  else
    value = 1.0 - last / first;
  if (value && !std::isfinite(*value))
    value = std::numeric_limits<double>::quiet_NaN(), reason = "a loss is not finite";
}

LossGap::LossGap(double loss, double reference) {
  if (std::isnan(reference))  // whose sign means nothing and differs between processors
    reason = "BF16's loss is nan";
  else if (!std::isfinite(reference) || reference == 0.0)
    reason = fmt::format("BF16's loss is {}", reference);
  else
    value = std::abs(loss - reference) / std::abs(reference);
}

MeanLossGap::MeanLossGap(const std::vector<double>& losses, const std::vector<double>& reference) {
  constexpr double kQuantile = 2.365;  // quantile of Student's t at 97.5 %, 7 degrees of freedom
  static_assert(kLossWindows == 8);
  const std::size_t steps = losses.size(), first = steps - steps / 2;
  if (steps / 2 < kLossWindows) {
    reason = fmt::format("needs {} steps: the second half has {} windows", 2 * kLossWindows, kLossWindows);
    return;
  }
  const auto mean = [&](const std::vector<double>& of, std::size_t begin, std::size_t end) {
    return std::accumulate(of.begin() + static_cast<std::ptrdiff_t>(begin),
                           of.begin() + static_cast<std::ptrdiff_t>(end), 0.0) /
           static_cast<double>(end - begin);
  };
  const auto gap = [&](std::size_t begin, std::size_t end) {
    const double bf16 = mean(reference, begin, end);
    return (mean(losses, begin, end) - bf16) / std::abs(bf16);
  };
  const LossGap usable(1.0, mean(reference, first, steps));
  if (!usable.value) {
    reason = usable.reason;
    return;
  }
  value = gap(first, steps);
  double squares = 0.0;
  for (std::size_t window = 0; window < kLossWindows; ++window) {
    const std::size_t count = steps - first;
    const double away =
        gap(first + window * count / kLossWindows, first + (window + 1) * count / kLossWindows) - *value;
    squares += away * away;
  }
  margin = kQuantile * std::sqrt(squares / (kLossWindows - 1.0) / static_cast<double>(kLossWindows));
}

std::vector<double> mean_by_step(const std::vector<float>& losses, std::size_t steps) {
  const std::size_t ranks = losses.size() / steps;
  std::vector<double> means(steps);
  for (std::size_t i = 0; i < losses.size(); ++i) means[i % steps] += losses[i];
  for (double& mean : means) mean /= static_cast<double>(ranks);
  return means;
}

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

Moved shards_moved(const std::vector<std::string>& names, const Lists& before, const Lists& after,
                   const std::vector<ElementRange>& shards) {
  constexpr std::size_t kMostNames = 3;
  std::size_t tensors = 0;
  std::vector<std::string> stayed;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto [begin, end] = shards[i];
    if (begin == end) continue;
    ++tensors;
    const std::span rows(after[i].begin() + begin, after[i].begin() + end);
    if (!all_finite(rows))
      stayed.push_back(names[i] + " (not finite)");
    else if (std::equal(rows.begin(), rows.end(), before[i].begin() + begin))
      stayed.push_back(names[i]);
  }
  if (stayed.empty()) return {};
  Moved out{.fraction = static_cast<double>(tensors - stayed.size()) / static_cast<double>(tensors), .reason = {}};
  const std::size_t named = std::min(stayed.size(), kMostNames);
  out.reason = fmt::format("not moved: {}", fmt::join(stayed.begin(), stayed.begin() + named, ", "));
  if (stayed.size() > named) out.reason += fmt::format(" and {} more", stayed.size() - named);
  return out;
}

Moved moved(const std::vector<std::string>& names, const Lists& before, const Lists& after) {
  if (after.empty()) return {.fraction = 0, .reason = "there are no weights"};
  std::vector<ElementRange> all;
  for (const std::vector<float>& tensor : after) all.push_back({.begin = 0, .end = std::ssize(tensor)});
  return shards_moved(names, before, after, all);
}

std::uint64_t hash_of(const std::vector<float>& values, std::uint64_t hash) {
  for (const float value : values) hash = fnv1a_word(std::bit_cast<std::uint32_t>(value), hash);
  return hash;
}

std::uint64_t hash_of(const Lists& values) {
  std::uint64_t hash = kFnv1aBasis;
  for (const std::vector<float>& list : values) hash = fnv1a_word(list.size(), hash_of(list, hash));
  return hash;
}

std::uint64_t values_hash(const std::vector<std::uint64_t>& weights, const std::vector<std::uint64_t>& losses) {
  std::uint64_t hash = weights.size();
  for (const std::uint64_t one : weights) hash = fnv1a_word(one, hash);
  for (const std::uint64_t one : losses) hash = fnv1a_word(one, hash);
  return hash;
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace fp8lab

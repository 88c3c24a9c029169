#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/fnv1a.h"
#include "harness/cell/cell.h"
#include "harness/train/element_range.h"

// What metrics of parity say about values on the host, of this program's runtime or of a library.
namespace fp8lab {

/// Tensors, each as its values in row-major order.
using Lists = std::vector<std::vector<float>>;

struct Noise {
  double signal = 0.0;
  double noise = 0.0;
  Noise& operator+=(const Noise& other);
};

/// Sums of squares of `reference`, and of its distance from `values`, which is as long.
Noise noise_of(const std::vector<float>& reference, const std::vector<float>& values);

/// 20 log10(|reference| / |reference - value|). Absent, not infinite, if both are equal, since there is no noise.
/// NaN if BF16's values are finite and these are not: a gate on NaN always fails.
struct Decibels {
  explicit Decibels(const Noise& sum);
  std::optional<double> value;
  std::string reason;
};

/// Puts the metric over all tensors, and the noise of each. `ranks`: for each rank the noise of every tensor, rank
/// after rank.
void put_noise(ArmResult& result, const std::string& metric, const std::string& of,
               const std::vector<std::string>& names, std::span<const Noise> ranks);

/// The same, but the metric is the least of the tensors', and its reason names that tensor.
void put_least_sqnr(ArmResult& result, const std::string& metric, const std::string& of,
                    const std::vector<std::string>& names, std::span<const Noise> ranks);

double squares_of(const Lists& values);
double squares_of_difference(const Lists& a, const Lists& b);

/// The square root of a quotient of sums of squares: one norm relative to BF16's. NaN, on which every gate fails, if
/// BF16's values are finite and the others are not.
struct NormRatio {
  NormRatio(double squares, double squares_of_bf16);
  std::optional<double> value;
  std::string reason;
};

/// The part of the first loss that training has removed by the last: of validations, which have the same tokens each
/// time, if there are two; else of steps. NaN, on which every gate fails, if a loss is not finite.
struct LossProgress {
  LossProgress(const std::vector<double>& of_steps, const std::vector<ValidationLoss>& of_validations);
  std::optional<double> value;
  std::string reason;
};

/// The relative distance of a loss from BF16's.
struct LossGap {
  LossGap(double loss, double reference);
  std::optional<double> value;
  std::string reason;
};

/// How far the mean of the losses of the second half of the steps is from the mean of `reference`, relative to it, with
/// half the 95 % interval that its values in kLossWindows windows of steps give: losses of neighbouring steps are not
/// independent, means over windows nearly are. Absent with the reason for too few steps, or losses that are not finite.
struct MeanLossGap {
  MeanLossGap(const std::vector<double>& losses, const std::vector<double>& reference);

  std::optional<double> value;
  std::optional<double> margin;
  std::string reason;
};
inline constexpr std::size_t kLossWindows = 8;

/// The mean over ranks of every step's loss, which is the loss of the tokens of all ranks. `losses`: losses of each
/// rank, rank after rank.
std::vector<double> mean_by_step(const std::vector<float>& losses, std::size_t steps);

bool all_finite(std::span<const float> values);

/// The tensors that training changed. One with a value that is not finite does not count as changed.
struct Moved {
  double fraction = 1;
  std::string reason;  ///< names those that stayed; empty if none did
};
Moved moved(const std::vector<std::string>& names, const Lists& before, const Lists& after);

/// The same of a rank's shards that have elements.
Moved shards_moved(const std::vector<std::string>& names, const Lists& before, const Lists& after,
                   const std::vector<ElementRange>& shards);

std::uint64_t hash_of(const std::vector<float>& values, std::uint64_t hash = kFnv1aBasis);
std::uint64_t hash_of(const Lists& values);

/// One hash over the final weights and the losses of all ranks.
std::uint64_t values_hash(const std::vector<std::uint64_t>& weights, const std::vector<std::uint64_t>& losses);

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace fp8lab

#include "harness/predict/fit.h"

#include <algorithm>
#include <array>
#include <bit>

namespace fp8lab {
namespace {

struct Remedy {
  int cost;  ///< relative to the other rows; a combination costs their sum
  const char* key;
  const char* words;
  /// Applies the change and returns the value that it sets; "" where there is nothing to change.
  std::string (*apply)(CellConfig&);
};

// Ordered by cost: first what changes neither results nor time, then what communicates more, then what rounds, then
// what computes again.
constexpr std::array kRemedies{
    Remedy{2, "reshard_after_forward", "every layer is gathered a second time in a step",
           [](CellConfig& cell) -> std::string {
             if (cell.reshard_after_forward) return "";
             cell.reshard_after_forward = true;
             return "true";
           }},
    Remedy{3, "training.quantized_weights", "weights are rounded to eight bits after every step",
           [](CellConfig& cell) -> std::string {
             TrainingConfig& training = cell.training;
             if (training.recipe == "bf16" || training.quantized_weights) return "";
             training.quantized_weights = true;
             return "true";
           }},
    Remedy{3, "training.moments", "Adam's moments are rounded to BF16",
           [](CellConfig& cell) -> std::string {
             TrainingConfig& training = cell.training;
             if (training.optimizer != Optimizer::kAdam || training.moments != Moments::kF32) return "";
             training.moments = Moments::kBF16;
             return "bf16";
           }},
    Remedy{4, "model.batch", "half a micro-batch, twice as many: twice the gathers",
           [](CellConfig& cell) -> std::string {
             if (cell.model.batch % 2 != 0) return "";
             cell.model.batch /= 2;
             cell.training.micro_batches *= 2;
             return std::to_string(cell.model.batch) +
                    ", training.micro_batches=" + std::to_string(cell.training.micro_batches);
           }},
    Remedy{5, "training.checkpoint", "every layer's forward runs twice: a third more computation",
           [](CellConfig& cell) -> std::string {
             if (cell.training.checkpoint == Recompute::kFull) return "";
             cell.training.checkpoint = Recompute::kFull;
             return "full";
           }},
};

/// Doubling the ranks costs more than all other changes together.
constexpr int kCostOfDoubling = 20;
constexpr int kMostDoublings = 6;

struct Combination {
  unsigned remedies = 0;  ///< bit i: kRemedies[i]
  int doublings = 0;      ///< of the ranks

  int cost() const {
    int sum = doublings * kCostOfDoubling;
    for (std::size_t i = 0; i < kRemedies.size(); ++i) sum += (remedies >> i & 1) ? kRemedies[i].cost : 0;
    return sum;
  }
  int size() const { return std::popcount(remedies) + (doublings > 0); }
  bool contains(const Combination& other) const {
    return (remedies & other.remedies) == other.remedies && doublings >= other.doublings;
  }
};

std::vector<Combination> by_cost() {
  std::vector<Combination> out;
  for (int doublings = 0; doublings <= kMostDoublings; ++doublings)
    for (unsigned remedies = 0; remedies < 1u << kRemedies.size(); ++remedies) out.push_back({remedies, doublings});
  std::stable_sort(out.begin(), out.end(), [](const Combination& a, const Combination& b) {
    return std::pair(a.cost(), a.size()) < std::pair(b.cost(), b.size());
  });
  return out;
}

}  // namespace

std::vector<Fit> cheapest_fits(const CellConfig& config, std::int64_t capacity,
                               const std::function<bool(const CellConfig&)>& allowed, std::size_t most) {
  static const std::vector<Combination> kTried = by_cost();
  std::vector<Fit> fits;
  std::vector<Combination> found;
  for (const Combination& tried : kTried) {
    if (fits.size() == most) break;
    if (tried.size() == 0 ||
        std::any_of(found.begin(), found.end(), [&](const Combination& earlier) { return tried.contains(earlier); }))
      continue;
    CellConfig trial = config;
    Fit fit;
    bool applies = true;
    for (std::size_t i = 0; applies && i < kRemedies.size(); ++i) {
      if (!(tried.remedies >> i & 1)) continue;
      const std::string value = kRemedies[i].apply(trial);
      applies = !value.empty();
      fit.changes.push_back({kRemedies[i].key, value, kRemedies[i].words});
    }
    if (tried.doublings > 0) {
      const std::int64_t ranks = static_cast<std::int64_t>(config.ranks) << tried.doublings;
      applies = applies && config.mesh.empty() && ranks <= kMostRanks;
      trial.ranks = static_cast<int>(std::min<std::int64_t>(ranks, kMostRanks));
      fit.changes.push_back({"ranks", std::to_string(ranks), "more GPUs"});
    }
    if (!applies || !allowed(trial)) continue;
    const Estimate estimated = estimate(trial, Arm::kAfter);
    const auto peak = estimated.figures.find("memory.peak_bytes");
    if (peak == estimated.figures.end() || peak->second > static_cast<double>(capacity)) continue;
    fit.peak_bytes = static_cast<std::int64_t>(peak->second);
    fits.push_back(std::move(fit));
    found.push_back(tried);
  }
  return fits;
}

}  // namespace fp8lab

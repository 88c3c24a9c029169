#include "harness/predict/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "harness/cell/sharding_keys.h"

namespace fp8lab {
namespace {

using Changes = std::vector<FitChange>;

struct Remedy {
  int cost;  ///< relative to the other rows; a combination costs their sum
  /// Applies the change and returns the keys that it sets; none where there is nothing to change.
  Changes (*apply)(CellConfig&);
};

// Ordered by cost: first what changes neither results nor time, then what communicates more, then what rounds, then
// what computes again.
constexpr std::array kRemedies{
    Remedy{2,
           [](CellConfig& cell) -> Changes {
             if (cell.reshard_after_forward) return {};
             cell.reshard_after_forward = true;
             return {{"reshard_after_forward", "true", "every layer is gathered a second time in a step"}};
           }},
    Remedy{3,
           [](CellConfig& cell) -> Changes {
             if (mesh_of(cell).replicas == 1) return {};
             cell.mesh = std::to_string(cell.ranks);
             return {{"mesh", cell.mesh, "one replica: gathers and reductions are among all ranks"}};
           }},
    Remedy{3,
           [](CellConfig& cell) -> Changes {
             TrainingConfig& training = cell.training;
             if (training.recipe == "bf16" || training.quantized_weights) return {};
             training.quantized_weights = true;
             return {{"training.quantized_weights", "true", "weights are rounded to eight bits after every step"}};
           }},
    Remedy{3,
           [](CellConfig& cell) -> Changes {
             TrainingConfig& training = cell.training;
             if (training.optimizer != Optimizer::kAdam || training.moments != Moments::kF32) return {};
             training.moments = Moments::kBF16;
             return {{"training.moments", "bf16", "Adam's moments are rounded to BF16"}};
           }},
    Remedy{4,
           [](CellConfig& cell) -> Changes {
             if (cell.model.batch % 2 != 0) return {};
             cell.model.batch /= 2;
             cell.training.micro_batches *= 2;
             return {{"model.batch", std::to_string(cell.model.batch), "half a micro-batch"},
                     {"training.micro_batches", std::to_string(cell.training.micro_batches),
                      "twice as many: twice the gathers"}};
           }},
    Remedy{5,
           [](CellConfig& cell) -> Changes {
             if (cell.training.checkpoint == Recompute::kFull) return {};
             cell.training.checkpoint = Recompute::kFull;
             return {{"training.checkpoint", "full", "every layer's forward runs twice: a third more computation"}};
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

/// Multiplies the ranks, and the shards of a mesh, by a power of two. False if a run has at most fewer ranks.
bool add_ranks(int doublings, CellConfig& cell, Changes& changes) {
  if (doublings == 0) return true;
  const std::int64_t ranks = static_cast<std::int64_t>(cell.ranks) << doublings;
  if (ranks > kMostRanks) return false;
  MeshText mesh = mesh_of(cell);
  cell.ranks = static_cast<int>(ranks);
  changes.push_back({"ranks", std::to_string(ranks), "more GPUs"});
  if (cell.mesh.empty()) return true;
  mesh.shards <<= doublings;
  cell.mesh = mesh.replicas == 1 ? std::to_string(mesh.shards) : fmt::format("{}x{}", mesh.replicas, mesh.shards);
  const auto before = std::ranges::find(changes, "mesh", &FitChange::key);
  if (before != changes.end())
    before->value = cell.mesh;
  else
    changes.push_back({"mesh", cell.mesh, "more shards of each replica"});
  return true;
}

/// The changes of a combination, after applying them; none if one of them changes nothing.
Changes changes_of(const Combination& tried, CellConfig& cell) {
  Changes out;
  for (std::size_t i = 0; i < kRemedies.size(); ++i) {
    if (!(tried.remedies >> i & 1)) continue;
    const Changes made = kRemedies[i].apply(cell);
    if (made.empty()) return {};
    out.insert(out.end(), made.begin(), made.end());
  }
  return add_ranks(tried.doublings, cell, out) ? out : Changes{};
}

/// What a search has tried: each change once, and the most ranks.
class Tried {
 public:
  void add(const Combination& tried, const Changes& changes, int ranks) {
    if (tried.doublings > 0) {
      most_ranks_ = std::max(most_ranks_, ranks);
      return;
    }
    for (const FitChange& change : changes) {
      const std::string text = fmt::format("{}={}", change.key, change.value);
      if (std::ranges::find(texts_, text) == texts_.end()) texts_.push_back(text);
    }
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> out = texts_;
    if (most_ranks_ > 0) out.push_back(fmt::format("up to {} ranks", most_ranks_));
    return out;
  }

 private:
  std::vector<std::string> texts_;
  int most_ranks_ = 0;
};

}  // namespace

FitSearch cheapest_fits(const CellConfig& config, std::int64_t capacity,
                        const std::function<bool(const CellConfig&)>& allowed, std::size_t most) {
  static const std::vector<Combination> kTried = by_cost();
  std::vector<Fit> fits;
  std::vector<Combination> found;
  Tried all;
  for (const Combination& tried : kTried) {
    if (fits.size() == most) break;
    if (tried.size() == 0 ||
        std::any_of(found.begin(), found.end(), [&](const Combination& earlier) { return tried.contains(earlier); }))
      continue;
    CellConfig trial = config;
    Fit fit{changes_of(tried, trial), 0, tried.cost()};
    if (fit.changes.empty() || !allowed(trial)) continue;
    all.add(tried, fit.changes, trial.ranks);
    const Estimate estimated = estimate(trial, Arm::kAfter);
    const auto peak = estimated.figures.find("memory.peak_bytes");
    if (peak == estimated.figures.end() || peak->second > static_cast<double>(capacity)) continue;
    fit.peak_bytes = static_cast<std::int64_t>(peak->second);
    fits.push_back(std::move(fit));
    found.push_back(tried);
  }
  return {std::move(fits), all.texts()};
}

}  // namespace fp8lab

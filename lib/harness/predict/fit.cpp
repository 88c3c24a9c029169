#include "harness/predict/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <utility>

#include "harness/cell/keys.h"
#include "harness/cell/sharding_keys.h"

namespace fp8lab {
namespace {

/// A cell that changes.
struct Trial {
  const CellConfig& before;
  CellConfig cell;
  std::vector<FitChange> changes;

  void set(const char* key, std::string value, std::string cost, Price price = Price::kTime) {
    const auto earlier = std::ranges::find(changes, key, &FitChange::key);
    FitChange change{key, std::move(value), std::move(cost), price};
    if (earlier == changes.end())
      changes.push_back(std::move(change));
    else
      *earlier = std::move(change);
  }

  /// Keeps the tokens of a step when each of its passes has fewer. False if there would be too many micro-batches.
  bool multiply_micro_batches(std::int64_t factor) {
    static const auto kMost = static_cast<std::int64_t>(find_key("training.micro_batches")->high);
    std::int64_t& passes = cell.training.micro_batches;
    if (passes > kMost / factor) return false;
    passes *= factor;
    const std::int64_t all = passes / before.training.micro_batches;
    const std::string times = all == 2 ? "twice" : fmt::format("{} times", all);
    set("training.micro_batches", std::to_string(passes),
        is_sharded(cell) ? fmt::format("{0} as many: {0} the gathers", times) : times + " as many");
    return true;
  }
};

struct Remedy {
  std::string_view what;
  int cost;  ///< relative to the other rows; a combination costs their sum
  /// Applies the change so many times. False if there is nothing to change so often.
  bool (*apply)(Trial&, int times);
  bool repeats = false;  ///< applied as often as is needed
};

// Ordered by cost: first what changes neither results nor time, then what communicates more, then what rounds, then
// what computes again. Split sequences come last: they communicate for every pass and in every layer's attention, and
// leave fewer tokens to compute meanwhile.
constexpr std::array kRemedies{
    Remedy{"resharding after forward", 2,
           [](Trial& trial, int) {
             if (trial.cell.reshard_after_forward) return false;
             trial.cell.reshard_after_forward = true;
             trial.set("reshard_after_forward", "true", "every layer is gathered a second time in a step");
             return true;
           }},
    Remedy{"one replica", 3,
           [](Trial& trial, int) {
             if (is_replicated(trial.cell)) {
               trial.cell.sharding = Sharded::kFsdp;
               trial.set("sharding", "fsdp", "parameters are gathered before each pass of a layer");
               return true;
             }
             if (mesh_of(trial.cell).replicas == 1) return false;
             trial.cell.mesh = std::to_string(trial.cell.ranks);
             trial.set("mesh", trial.cell.mesh, "one replica: gathers and reductions are among all ranks");
             return true;
           }},
    Remedy{"FP8 weights", 3,
           [](Trial& trial, int) {
             TrainingConfig& training = trial.cell.training;
             if (training.recipe == "bf16" || training.quantized_weights) return false;
             training.quantized_weights = true;
             trial.set("training.quantized_weights", "true", "weights are rounded to eight bits after every step",
                       Price::kNumerics);
             return true;
           }},
    Remedy{"moments in BF16", 3,
           [](Trial& trial, int) {
             TrainingConfig& training = trial.cell.training;
             if (training.optimizer != Optimizer::kAdam || training.moments != Moments::kF32) return false;
             training.moments = Moments::kBF16;
             trial.set("training.moments", "bf16", "Adam's moments are rounded to BF16", Price::kNumerics);
             return true;
           }},
    Remedy{"smaller micro-batches", 4,
           [](Trial& trial, int times) {
             std::int64_t& batch = trial.cell.model.batch;
             const std::int64_t factor = std::int64_t{1} << times;
             if (batch % factor != 0) return false;
             batch /= factor;
             trial.set("model.batch", std::to_string(batch),
                       times == 1 ? "half a micro-batch" : fmt::format("1/{} of a micro-batch", factor));
             return trial.multiply_micro_batches(factor);
           },
           true},
    Remedy{"full recomputation", 5,
           [](Trial& trial, int) {
             TrainingConfig& training = trial.cell.training;
             if (training.checkpoint == Recompute::kFull) return false;
             training.checkpoint = Recompute::kFull;
             trial.set("training.checkpoint", "full", "every layer's forward runs twice: a third more computation");
             return true;
           }},
    Remedy{"split sequences", 6,
           [](Trial& trial, int times) {
             CellConfig& cell = trial.cell;
             const std::int64_t factor = std::int64_t{1} << times, ranks = cell.context_parallel * factor;
             // A micro-batch that can be halved spares the exchange of keys and values.
             if (cell.model.batch % 2 == 0) return false;
             // What `allowed` would refuse too, after longer; and what ends the doublings.
             if (cell.ranks % ranks != 0 || cell.model.seq % (2 * ranks) != 0) return false;
             cell.context_parallel = static_cast<int>(ranks);
             trial.set("context_parallel", std::to_string(ranks),
                       fmt::format("{} ranks split every sequence: keys and values travel around them", ranks));
             return trial.multiply_micro_batches(factor);
           },
           true},
};

/// Doubling the ranks costs more than all other changes together.
constexpr int kCostOfDoubling = 20;
constexpr int kMostDoublings = 6;

struct Combination {
  unsigned remedies = 0;  ///< bit i: kRemedies[i]
  int doublings = 0;      ///< doublings of the ranks

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
bool multiply_ranks(int doublings, CellConfig& cell) {
  const std::int64_t ranks = static_cast<std::int64_t>(cell.ranks) << doublings;
  if (ranks > kMostRanks) return false;
  if (!cell.mesh.empty()) {
    MeshText mesh = mesh_of(cell);
    mesh.shards <<= doublings;
    cell.mesh = mesh.replicas == 1 ? std::to_string(mesh.shards) : fmt::format("{}x{}", mesh.replicas, mesh.shards);
  }
  cell.ranks = static_cast<int>(ranks);
  return true;
}

/// What the search tried: for each remedy, the largest number of times it was applied, and the most ranks.
class Tried {
 public:
  void add(std::size_t remedy, int times, const FitChange& change) {
    const auto earlier = std::ranges::find(rows_, remedy, &Row::remedy);
    Row row{remedy, times, fmt::format("{}={}", change.key, change.value)};
    if (earlier == rows_.end())
      rows_.push_back(std::move(row));
    else if (times > earlier->times)
      *earlier = std::move(row);
  }
  void add_ranks(int ranks) { most_ranks_ = std::max(most_ranks_, ranks); }
  std::vector<std::string> texts() const {
    std::vector<std::string> out;
    for (const Row& row : rows_) out.push_back(row.text);
    if (most_ranks_ > 0) out.push_back(fmt::format("up to {} ranks", most_ranks_));
    return out;
  }

 private:
  struct Row {
    std::size_t remedy;
    int times;
    std::string text;
  };
  std::vector<Row> rows_;
  int most_ranks_ = 0;
};

/// A combination whose remedies are applied so often.
struct Candidate {
  Trial trial;
  std::array<int, kRemedies.size()> times{};
  std::array<std::size_t, kRemedies.size()> change{};  ///< the first of each remedy, in trial.changes
};

/// The combination with each number of times that its remedies can be applied, ascending. None if one of them
/// changes nothing.
std::vector<Candidate> candidates_of(const Combination& tried, const CellConfig& enlarged) {
  std::vector<Candidate> out{{.trial = {enlarged, enlarged, {}}}};
  for (std::size_t i = 0; i < kRemedies.size(); ++i) {
    if (!(tried.remedies >> i & 1)) continue;
    std::vector<Candidate> with;
    for (const Candidate& before : out)
      for (int times = 1; times == 1 || kRemedies[i].repeats; ++times) {
        Candidate next = before;
        next.times[i] = times;
        next.change[i] = before.trial.changes.size();
        if (!kRemedies[i].apply(next.trial, times)) break;
        with.push_back(std::move(next));
      }
    out = std::move(with);
  }
  return out;
}

class Search {
 public:
  Search(const CellConfig& config, std::int64_t capacity, const std::function<bool(const CellConfig&)>& allowed,
         const TorchPeak& torch)
      : config_(config), capacity_(capacity), allowed_(allowed), torch_(torch) {}

  /// The combination, its remedies applied no more often than is needed. Combinations are passed in order of cost.
  std::optional<Fit> fit_of(const Combination& tried) {
    unsigned& refused = refused_[static_cast<std::size_t>(tried.doublings)];
    if (tried.remedies & refused) return std::nullopt;
    CellConfig enlarged = config_;
    if (!multiply_ranks(tried.doublings, enlarged)) return std::nullopt;
    const std::vector<Candidate> candidates = candidates_of(tried, enlarged);
    // The more often remedies are applied, the less memory is needed: what the most of them do not achieve, fewer do
    // not either, and most combinations cost one estimate.
    Outcome last;
    std::size_t most = candidates.size();
    while (most > 0 && !(last = try_out(tried, candidates[most - 1])).runs) --most;
    // No remedy makes up for a rule that another one breaks.
    if (most == 0 && !candidates.empty() && std::popcount(tried.remedies) == 1) refused |= tried.remedies;
    if (!last.fit) return std::nullopt;
    for (std::size_t i = 0; i + 1 < most; ++i)
      if (Outcome outcome = try_out(tried, candidates[i]); outcome.fit) return std::move(outcome.fit);
    return std::move(last.fit);
  }

  std::vector<std::string> tried() const { return tried_.texts(); }

 private:
  struct Outcome {
    bool runs = false;
    std::optional<Fit> fit;
  };

  Outcome try_out(const Combination& tried, const Candidate& candidate) {
    Trial trial = candidate.trial;
    const CellConfig& enlarged = trial.before;
    if (tried.doublings > 0) {
      trial.set("ranks", std::to_string(enlarged.ranks), "more GPUs", Price::kGpus);
      if (trial.cell.mesh == enlarged.mesh && enlarged.mesh != config_.mesh)
        trial.set("mesh", enlarged.mesh, "more shards of each replica", Price::kGpus);
    }
    if (!allowed_(trial.cell)) return {};
    if (tried.doublings > 0) tried_.add_ranks(enlarged.ranks);
    for (std::size_t i = 0; i < kRemedies.size(); ++i)
      if (tried.doublings == 0 && candidate.times[i] > 0)
        tried_.add(i, candidate.times[i], trial.changes[candidate.change[i]]);
    Outcome out{.runs = true, .fit = {}};
    const std::optional<PeakBytes> peaks = peaks_of(trial.cell, torch_);
    if (peaks && peaks->largest() <= capacity_) out.fit = Fit{std::move(trial.changes), *peaks, tried.cost()};
    return out;
  }

  const CellConfig& config_;
  const std::int64_t capacity_;
  const std::function<bool(const CellConfig&)>& allowed_;
  const TorchPeak& torch_;
  std::array<unsigned, kMostDoublings + 1> refused_{};  ///< remedies that break a rule by themselves
  Tried tried_;
};

}  // namespace

std::string_view name(Price price) {
  return price == Price::kTime ? "time" : price == Price::kNumerics ? "numerics" : "GPUs";
}

namespace {

std::optional<std::int64_t> peak_in(const Estimate& estimated) {
  const auto peak = estimated.figures.find("memory.peak_bytes");
  if (peak == estimated.figures.end()) return std::nullopt;
  return static_cast<std::int64_t>(peak->second);
}

}  // namespace

std::optional<PeakBytes> peaks_of(const CellConfig& config, const TorchPeak& torch) {
  const auto own = peak_in(estimate(config, Arm::kAfter));
  if (!own) return std::nullopt;
  return PeakBytes{*own, torch ? torch(config).value_or(0) : 0};
}

std::string meaning_of_cheapest() {
  std::string costs;
  for (const Remedy& remedy : kRemedies) costs += fmt::format("{} {}, ", remedy.what, remedy.cost);
  return fmt::format(
      "The cheapest change is the one with the smallest sum of these costs, which only order changes: {}and {} for "
      "each "
      "doubling of the GPUs.",
      costs, kCostOfDoubling);
}

FitSearch cheapest_fits(const CellConfig& config, std::int64_t capacity,
                        const std::function<bool(const CellConfig&)>& allowed, const TorchPeak& torch,
                        std::size_t most) {
  static const std::vector<Combination> kTried = by_cost();
  std::vector<Fit> fits;
  std::vector<Combination> found;
  Search search(config, capacity, allowed, torch);
  for (const Combination& tried : kTried) {
    if (fits.size() == most) break;
    if (tried.size() == 0 ||
        std::any_of(found.begin(), found.end(), [&](const Combination& earlier) { return tried.contains(earlier); }))
      continue;
    std::optional<Fit> fit = search.fit_of(tried);
    if (!fit) continue;
    fits.push_back(std::move(*fit));
    found.push_back(tried);
  }
  return {std::move(fits), search.tried()};
}

}  // namespace fp8lab

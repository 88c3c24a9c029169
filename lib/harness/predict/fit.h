#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/predict/predict.h"

namespace fp8lab {

/// What a change costs.
enum class Price { kTime, kNumerics, kGpus };
/// "time", "numerics", "GPUs"
std::string_view name(Price price);

/// A change of one key to how a cell trains, with what it costs.
struct FitChange {
  std::string key;    ///< a scenario's: "training.checkpoint"
  std::string value;  ///< "full"
  std::string cost;   ///< "every layer's forward runs twice"
  Price price = Price::kTime;
};

/// The peaks that memory must hold.
struct PeakBytes {
  std::int64_t own = 0;    ///< bytes of the own runtime
  std::int64_t torch = 0;  ///< bytes of PyTorch; 0: of no interest

  std::int64_t largest() const { return std::max(own, torch); }
};
/// The peak of the `after` arm in PyTorch; nothing if it is not predicted.
using TorchPeak = std::function<std::optional<std::int64_t>(const CellConfig&)>;
/// The peaks of the `after` arm; nothing if it is not predicted. Without `torch` only the own runtime's.
std::optional<PeakBytes> peaks_of(const CellConfig& config, const TorchPeak& torch);

/// Changes with which a cell's `after` arm fits.
struct Fit {
  std::vector<FitChange> changes;  ///< the cheapest first
  PeakBytes peak;
  int cost = 0;  ///< the sum of the changes' costs, comparable between cells
};

struct FitSearch {
  std::vector<Fit> fits;  ///< the cheapest first; none contains another
  /// Every change of a cell that could run, as far as it goes: "training.moments=bf16", "model.batch=1", "up to 512
  /// ranks".
  std::vector<std::string> tried;
};

/// "cheapest" in one sentence: which cost each change has.
std::string meaning_of_cheapest();

/// Searches for combinations of changes with which the peaks of `config`, and the peak of `torch` if it is given, are
/// at most `capacity` bytes, until `most` of them are found. Tried are: resharding after forward, one replica in
/// place of several, moments in BF16, FP8 weights, a smaller micro-batch, recomputation, sequences split over ranks,
/// and more ranks. Micro-batches and the tokens of a rank are halved as often as is needed, with so many more
/// micro-batches that the tokens of a step and the ranks stay the same. `allowed` is false for a cell that cannot be
/// run, or that means nothing, for example a cell that splits the sequences of a layer without attention.
FitSearch cheapest_fits(const CellConfig& config, std::int64_t capacity,
                        const std::function<bool(const CellConfig&)>& allowed, const TorchPeak& torch = {},
                        std::size_t most = 3);

}  // namespace fp8lab

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "harness/predict/predict.h"

namespace fp8lab {

/// A change of one key to how a cell trains, with what it costs.
struct FitChange {
  std::string key;    ///< of a scenario: "training.checkpoint"
  std::string value;  ///< "full"
  std::string cost;   ///< "every layer's forward runs twice"
};

/// Changes with which a cell's `after` arm fits.
struct Fit {
  std::vector<FitChange> changes;  ///< the cheapest first
  std::int64_t peak_bytes = 0;
  int cost = 0;  ///< of all changes together, comparable between cells
};

struct FitSearch {
  std::vector<Fit> fits;  ///< the cheapest first; none contains another
  /// Every change of a cell that could run, as far as it goes: "training.moments=bf16", "model.batch=1", "up to 512
  /// ranks".
  std::vector<std::string> tried;
};

/// Searches for combinations of changes with which the peak of `config` is at most `capacity` bytes, until `most` of
/// them are found. Tried are: resharding after forward, one replica in place of several, moments in BF16, FP8 weights,
/// a smaller micro-batch, recomputation, sequences split over ranks, and more ranks. Micro-batches and the tokens of a
/// rank are halved as often as is needed, with so many more micro-batches that a step has as many tokens on as many
/// ranks. `allowed` is false for a cell that cannot be run, or that means nothing, as one that splits the sequences of
/// a layer without attention.
FitSearch cheapest_fits(const CellConfig& config, std::int64_t capacity,
                        const std::function<bool(const CellConfig&)>& allowed, std::size_t most = 3);

}  // namespace fp8lab

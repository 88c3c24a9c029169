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
  std::vector<std::string>
      tried;  ///< every change of a cell that could run: "training.moments=bf16", "up to 512 ranks"
};

/// Searches for combinations of changes with which the peak of `config` is at most `capacity` bytes, until `most` of
/// them are found. Tried are: resharding after forward, one replica in place of several, moments in BF16, FP8 weights,
/// a smaller micro-batch, recomputation, and more ranks. `allowed` is false for a cell that cannot be run.
FitSearch cheapest_fits(const CellConfig& config, std::int64_t capacity,
                        const std::function<bool(const CellConfig&)>& allowed, std::size_t most = 3);

}  // namespace fp8lab

#pragma once

#include <string>
#include <vector>

#include "harness/cell/vocabulary.h"
#include "harness/scenario/scenario.h"

namespace fp8lab {

struct ListingOptions {
  bool details = false;  ///< also list arms, limits and expectations of each cell
  bool json = false;
};

/// How many cells will be inconclusive, and with `skips` how many will be skipped, and why, as far as that is known
/// before anything runs; "" if none.
std::string foreseen(const std::vector<PlannedCell>& cells, bool skips);

/// The output of `fp8lab run --list` and `fp8lab run --dry-run`.
std::string listing(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, const ListingOptions& options);

/// For standard error: a line for each scenario file and folder in its `versions`, whose Python code runs with the
/// cells.
/// "" if there are none.
std::string code_notes(const std::vector<PlannedCell>& cells);

}  // namespace fp8lab

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

/// The output of `fp8lab run --list` and `fp8lab run --dry-run`.
std::string listing(const std::vector<PlannedCell>& cells, const Vocabulary& vocabulary, const ListingOptions& options);

}  // namespace fp8lab

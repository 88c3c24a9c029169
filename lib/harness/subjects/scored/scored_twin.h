#pragma once

#include <vector>

#include "harness/cell/cell.h"
#include "harness/results/json_reader.h"
#include "harness/subjects/scored/rank_values.h"

namespace fp8lab {

/// Puts the metrics parity.twin_* of a library's arm: its pass with the trained weights is compared bit for bit with
/// the pass of newly built layers over the same ranks, and within bounds with the pass of one rank over all sequences.
/// `cell` is cell.json.
void put_library_twin(ArmResult& result, const std::vector<RankValues>& ranks, const JsonReader& cell);

}  // namespace fp8lab

#pragma once

#include <cstdint>
#include <string>

#include "memory/ledger.h"

namespace fp8lab {

/// The JSON document of a recorded ledger: {"schema": "fp8lab.timeline/1", "holders": [...], "marks": [...], "events":
/// [[delta_bytes, bytes, live_bytes, holder, phase, step], ...]}. Events are in order. An event with a delta of 0 moved
/// `bytes` to `holder`; it has a seventh entry, the holder from which they moved.
std::string timeline_json(const Ledger& ledger);

/// The account of a recorded ledger, audited by adding up its timeline again: the largest difference in bytes between a
/// figure of the ledger (live bytes, peaks of the run and of its phases, breakdowns by holder, marks) and what the
/// events give. 0 if the account is consistent. If recording paused, peaks are compared only with their breakdown.
std::int64_t unbalanced_bytes(const Ledger& ledger);

}  // namespace fp8lab

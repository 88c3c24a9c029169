#pragma once

#include <string>

#include "memory/ledger.h"

namespace fp8lab {

/// The JSON document of a recorded ledger: {"schema": "fp8lab.timeline/1", "holders": [...], "marks": [...], "events":
/// [[delta_bytes, bytes, live_bytes, holder, phase, step], ...]}. Events are in order. An event with a delta of 0 moved
/// `bytes` to `holder`; it has a seventh entry, the holder from which they moved.
std::string timeline_json(const Ledger& ledger);

}  // namespace fp8lab

#pragma once

#include <string>

#include "memory/ledger.h"

namespace fp8lab {

/// A recorded ledger as a document: {"schema": "fp8lab.timeline/1", "holders": [...], "marks": [...], "events":
/// [[delta_bytes, bytes, live_bytes, holder, phase, step], ...]}. Events are in order. A delta of 0 moved `bytes` to
/// `holder`; such an event has a seventh entry, the holder that they moved from.
std::string timeline_json(const Ledger& ledger);

}  // namespace fp8lab

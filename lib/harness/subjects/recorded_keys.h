#pragma once

#include "harness/cell/cell.h"
#include "harness/results/json_reader.h"

namespace fp8lab {

/// Sets the keys of `cell` that a recorded run has, {"model.hidden": 64}. Throws Error for what is no key of a cell.
void set_recorded_keys(const JsonReader& keys, CellConfig& cell);

}  // namespace fp8lab

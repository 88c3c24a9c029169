#pragma once

#include "harness/eager/program.h"
#include "harness/predict/predict.h"

namespace fp8lab {

/// The memory of an eager program as an estimate of `cell`.
Estimate estimate_of(const eager::Memory& memory, const CellConfig& cell);

}  // namespace fp8lab

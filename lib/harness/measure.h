#pragma once

#include "harness/cell.h"

namespace fp8lab {

/// Runs one arm of a cell in this process and measures what the cell asks for. `before`: with the cell's fix reverted;
/// `after`: as it is; `bf16`: the same model without quantization. Parity metrics run the BF16 model, and for `before` the fixed
/// one, beside it on a device of their own, so that memory figures are the arm's alone.
///
/// Throws OutOfMemory (its message is the ledger's account) and Error.
ArmResult measure_arm(const CellConfig& cell, Arm arm);

}  // namespace fp8lab

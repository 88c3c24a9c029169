#pragma once

#include "harness/cell/cell.h"
#include "harness/subjects/subjects.h"

namespace fp8lab {

/// The hidden command of the process that runs an arm of subject script.
inline constexpr const char* kScriptCommand = "__script";

/// Runs the program of the arm under the instruments of `fp8lab watch`, in its own folder, and returns its figures. A
/// program that fails has status crashed, out_of_memory, or timeout after a signal to stop, and the figures that it
/// left. Throws Error if a patch does not apply, and if no step was measured.
ArmResult run_script_arm(const CellConfig& cell, Arm arm, const Subjects& subjects);

}  // namespace fp8lab

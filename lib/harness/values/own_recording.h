#pragma once

#include <functional>

#include "harness/cell/cell.h"

namespace fp8lab {

using MeasureArm = std::function<ArmResult(const CellConfig&, Arm)>;

/// Measures an arm of the own runtime with `measure`. If $FP8LAB_VALUES names a folder, the arm trains once and its
/// tensors are recorded instead: inputs, outputs and gradients of layers, what every cast to eight bits made, gradients
/// and weights. Throws Error on a device that computes no values.
MeasureArm with_recording(MeasureArm measure);

}  // namespace fp8lab

#pragma once

#include "backend/kernels.h"

// The GPU's kernels, in the folders below this one; the device's table is made from FP8LAB_KERNELS. Each kernel
// launches on the context's stream and returns without waiting, is deterministic, and is bitwise equal to the `cpu`
// kernel unless its file states why not.
namespace fp8lab::cuda {

FP8LAB_KERNELS(FP8LAB_DECLARE_KERNEL)

/// Computes the amax of a kernel's result in a separate pass and stores it at `place`; does nothing if `place` is null.
void measure(const MatrixView& result, float* place, ExecContext& context);

}  // namespace fp8lab::cuda

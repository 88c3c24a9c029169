#pragma once

#include "backend/kernels.h"

// The GPU's kernels, one file per family in this folder; cuda_device.cpp lists them in the device's table. Each
// launches on the context's stream and returns; each is deterministic. Bitwise the `cpu` kernel unless its file says
// why not.
namespace fp8lab::cuda {

FP8LAB_KERNELS(FP8LAB_DECLARE_KERNEL)

/// The amax of a kernel's result, in a pass of its own, at `place` where the kernel's arguments give one.
void measure(const MatrixView& result, float* place, ExecContext& context);

}  // namespace fp8lab::cuda

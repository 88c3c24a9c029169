#pragma once

#include "backend/kernels.h"

// The host's kernels, in the folders below this one; the device's table is made from FP8LAB_KERNELS. Every kernel
// is deterministic, whatever the number of threads.
namespace fp8lab::cpu {

FP8LAB_KERNELS(FP8LAB_DECLARE_KERNEL)

}  // namespace fp8lab::cpu

#pragma once

#include "backend/kernels.h"

// The host's kernels, one file per family in this folder; cpu_device.cpp lists them in the device's table. Every kernel
// is deterministic, whatever the number of threads.
namespace fp8lab::cpu {

FP8LAB_KERNELS(FP8LAB_DECLARE_KERNEL)

}  // namespace fp8lab::cpu

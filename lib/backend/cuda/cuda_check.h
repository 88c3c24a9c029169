#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "core/check.h"

namespace fp8lab {

/// Throws Error with `call` and CUDA's message unless `status` is success. Clears an error that a kernel left behind
/// if CUDA allows it.
void cuda_check(cudaError_t status, std::string_view call);

/// Checks the last launch: cuda_check(cudaGetLastError(), kernel).
void cuda_check_launch(std::string_view kernel);

}  // namespace fp8lab

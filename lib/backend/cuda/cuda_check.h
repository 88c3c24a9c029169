#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "core/check.h"

namespace fp8lab {

/// Throws Error naming `call` and CUDA's own words unless `status` is success. An error that a kernel left behind is
/// cleared where CUDA allows it.
void cuda_check(cudaError_t status, std::string_view call);

/// Of the launch just made: cuda_check(cudaGetLastError(), kernel).
void cuda_check_launch(std::string_view kernel);

}  // namespace fp8lab

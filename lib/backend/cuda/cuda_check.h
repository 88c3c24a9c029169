#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace fp8lab {

/// Throws Error naming `call` and CUDA's own words unless `status` is success.
void cuda_check(cudaError_t status, std::string_view call);

}  // namespace fp8lab

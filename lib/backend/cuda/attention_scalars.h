#pragma once

#include <cuda_runtime_api.h>

namespace fp8lab::cuda {

/// *inverse = 1 / *scale.
void invert_scale(const float* scale, float* inverse, cudaStream_t stream);

/// *amax = max(*amax, |*seen|), NaN above all. Without `amax` nothing.
void raise_amax(const float* seen, float* amax, cudaStream_t stream);

}  // namespace fp8lab::cuda

#pragma once

#include <cuda_runtime_api.h>

namespace fp8lab::cuda {

/// A role's scale and amax beside what a library wants and gives instead.
struct RoleScalars {
  const float* scale = nullptr;
  float* amax = nullptr;         ///< may be null
  float* inverse = nullptr;      ///< 1 / *scale
  const float* seen = nullptr;   ///< the library's amax of one call
};

/// Writes the inverses of both.
void invert_scales(const RoleScalars& a, const RoleScalars& b, cudaStream_t stream);

/// *amax = max(*amax, |*seen|), NaN above all, of both.
void raise_amaxes(const RoleScalars& a, const RoleScalars& b, cudaStream_t stream);

}  // namespace fp8lab::cuda

#pragma once

#include <cuda_runtime_api.h>

#include <span>

namespace fp8lab::cuda {

/// A role's scale and amax beside what a library wants and gives instead.
struct RoleScalars {
  const float* scale = nullptr;
  float* amax = nullptr;        ///< may be null
  float* inverse = nullptr;     ///< factor / *scale
  float* applied = nullptr;     ///< *scale / factor; may be null
  const float* seen = nullptr;  ///< the library's amax of one call, `factor` times the role's; may be null
  float factor = 1.0f;          ///< what the library multiplies the role's values by before it casts them
};

/// Writes the inverses and what is applied, of eight roles at most.
void prepare_scales(std::span<const RoleScalars> roles, cudaStream_t stream);

/// *amax = max(*amax, |*seen / factor|), NaN above all. Roles may share an amax.
void raise_amaxes(std::span<const RoleScalars> roles, cudaStream_t stream);

}  // namespace fp8lab::cuda

#pragma once

#include <cuda_runtime_api.h>

#include <span>

namespace fp8lab::cuda {

/// A role's scale and amax, and the scalars that a library takes and returns in their place.
struct RoleScalars {
  const float* scale = nullptr;
  float* amax = nullptr;        ///< may be null
  float* inverse = nullptr;     ///< factor / *scale; 1 / applied if that has reached its limit
  float* applied = nullptr;     ///< *scale / factor, 2^127 at most; may be null
  const float* seen = nullptr;  ///< the library's amax of one call, `factor` times the role's; may be null
  float factor = 1.0f;          ///< the library multiplies the role's values by this before it casts them
};

/// Writes `inverse` and `applied` of each role; eight roles at most.
void prepare_scales(std::span<const RoleScalars> roles, cudaStream_t stream);

/// *amax = max(*amax, |*seen / factor|); a NaN wins. Roles may share an amax.
void raise_amaxes(std::span<const RoleScalars> roles, cudaStream_t stream);

}  // namespace fp8lab::cuda

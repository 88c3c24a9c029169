#pragma once

#include <cstdint>

#include "core/float_bits.h"

// Amaxes are compared as the bits of magnitudes: for those, integer order is float order, and NaN, which fmaxf would
// drop, stays above all.
namespace fp8lab::cuda {

__device__ inline std::uint32_t magnitude(float x) { return float_bits(x) & kFloatMagnitudeMask; }

/// The largest value of a warp, returned to all of its lanes.
__device__ inline std::uint32_t warp_max(std::uint32_t value) { return __reduce_max_sync(0xFFFFFFFFu, value); }

/// The largest value of a one-dimensional block of full warps, returned to its first thread. `words` is shared memory,
/// one word per warp.
__device__ inline std::uint32_t block_max(std::uint32_t value, std::uint32_t* words) {
  const unsigned warps = blockDim.x / 32;
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) words[threadIdx.x / 32] = value;
  __syncthreads();
  return threadIdx.x < 32 ? warp_max(threadIdx.x < warps ? words[threadIdx.x] : 0u) : 0u;
}

/// *amax = max(|*amax|, value), atomically.
__device__ inline void raise_amax(float* amax, std::uint32_t value) {
  auto* const bits = reinterpret_cast<std::uint32_t*>(amax);
  const std::uint32_t before = *static_cast<volatile std::uint32_t*>(bits);
  if ((before & ~kFloatMagnitudeMask) != 0)
    atomicAnd(bits, kFloatMagnitudeMask);  // clears the sign, whose bit would exceed all magnitudes
  if (value > (before & kFloatMagnitudeMask)) atomicMax(bits, value);
}

}  // namespace fp8lab::cuda

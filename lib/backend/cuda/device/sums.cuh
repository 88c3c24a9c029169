#pragma once

#include <cstdint>

#include "core/sum_order.h"

// Sums in the order of core/sum_order.h: thread t of a block holds partial sums kSumRun * t ... kSumRun * t + 7.
namespace fp8lab::cuda {

inline constexpr int kSumThreads = kSumLanes / kSumRun;

template <class Real>
__device__ inline Real join_run(const Real (&s)[kSumRun]) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/// Adds up the sums of a warp's lanes. Every lane gets the same bits, since addition is commutative.
template <class Real>
__device__ inline Real join_warp(Real sum) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
  return sum;
}

/// The total of the sums that `Warps` warps (a power of two, 8 at most) left in `shared`.
template <int Warps, class Real>
__device__ inline Real join_warp_sums(const Real* shared) {
  Real sums[Warps];
#pragma unroll
  for (int warp = 0; warp < Warps; ++warp) sums[warp] = shared[warp];
#pragma unroll
  for (int distance = 1; distance < Warps; distance *= 2)
#pragma unroll
    for (int warp = 0; warp + distance < Warps; warp += 2 * distance) sums[warp] += sums[warp + distance];
  return sums[0];
}

/// Adds up the sums of `Warps` warps; every thread gets the total. `shared` has room for one sum per warp and may be
/// reused after the block's next barrier.
template <int Warps, class Real>
__device__ inline Real join_warps(Real sum, Real* shared) {
  if constexpr (Warps == 1) return sum;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
  __syncthreads();
  return join_warp_sums<Warps>(shared);
}

}  // namespace fp8lab::cuda

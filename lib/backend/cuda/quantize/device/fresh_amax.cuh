#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/magnitudes.cuh"

// An amax that one launch computes and stores, whatever was stored there before.
namespace fp8lab::cuda {

/// The place in which the blocks of such a launch combine their amaxes. All zero between launches; the stream runs one
/// such launch at a time.
struct Arrivals {
  std::uint32_t largest;
  std::uint32_t arrived;
};

/// A GPU's Arrivals, allocated once.
class AmaxBarrier {
 public:
  explicit AmaxBarrier(CudaContext& context) : memory_(allocate_device(sizeof(Arrivals))) {
    cuda_check(cudaMemsetAsync(memory_.get(), 0, sizeof(Arrivals), context.stream()), "cudaMemsetAsync");
  }
  Arrivals* get() const { return reinterpret_cast<Arrivals*>(memory_.get()); }

 private:
  DeviceBytes memory_;
};

struct FreshAmax {
  FreshAmax(float* at, CudaContext& context) : amax(at), arrivals(context.kept<AmaxBarrier>().get()) {}

  float* amax;
  Arrivals* arrivals;
};

/// Ends a kernel. Must be called by every thread of every block; blocks must be one-dimensional and consist of full
/// warps. The last block to arrive stores the largest magnitude of all blocks.
__device__ inline void settle(std::uint32_t largest, const FreshAmax& result) {
  __shared__ std::uint32_t words[32];
  largest = block_max(largest, words);
  if (threadIdx.x != 0) return;
  Arrivals& arrivals = *result.arrivals;
  atomicMax(&arrivals.largest, largest);
  __threadfence();
  if (atomicAdd(&arrivals.arrived, 1u) + 1 != gridDim.x * gridDim.y) return;
  *result.amax = float_from_bits(atomicExch(&arrivals.largest, 0u));
  atomicExch(&arrivals.arrived, 0u);
}

}  // namespace fp8lab::cuda

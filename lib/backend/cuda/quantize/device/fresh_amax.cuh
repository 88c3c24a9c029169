#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/magnitudes.cuh"

// An amax that one launch finds and writes, whatever was there before.
namespace fp8lab::cuda {

/// Where the blocks of such a launch combine their amaxes. Zero between launches, of which the stream has one at a
/// time.
struct Arrivals {
  std::uint32_t largest;
  std::uint32_t arrived;
};

/// The one of a GPU.
class AmaxBarrier {
 public:
  explicit AmaxBarrier(CudaContext& gpu) : memory_(allocate_device(sizeof(Arrivals))) {
    cuda_check(cudaMemsetAsync(memory_.get(), 0, sizeof(Arrivals), gpu.stream()), "cudaMemsetAsync");
  }
  Arrivals* get() const { return reinterpret_cast<Arrivals*>(memory_.get()); }

 private:
  DeviceBytes memory_;
};

struct FreshAmax {
  FreshAmax(float* at, CudaContext& gpu) : amax(at), arrivals(gpu.kept<AmaxBarrier>().get()) {}

  float* amax;
  Arrivals* arrivals;
};

/// At the end of a kernel, by every thread of every block, which are one-dimensional and of full warps: what each has
/// found goes into the amax through the last block to come.
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

#include "backend/cuda/attention_scalars.h"

#include "backend/cuda/cuda_check.h"
#include "core/float_bits.h"

namespace fp8lab::cuda {
namespace {

__global__ void invert_scale_kernel(const float* scale, float* inverse) { *inverse = 1.0f / *scale; }

__global__ void raise_amax_kernel(const float* seen, float* amax) {
  const std::uint32_t before = float_bits(*amax) & kFloatMagnitudeMask, now = float_bits(*seen) & kFloatMagnitudeMask;
  *amax = float_from_bits(before > now ? before : now);
}

}  // namespace

void invert_scale(const float* scale, float* inverse, cudaStream_t stream) {
  invert_scale_kernel<<<1, 1, 0, stream>>>(scale, inverse);
  cuda_check_launch("invert_scale_kernel");
}

void raise_amax(const float* seen, float* amax, cudaStream_t stream) {
  if (amax == nullptr) return;
  raise_amax_kernel<<<1, 1, 0, stream>>>(seen, amax);
  cuda_check_launch("raise_amax_kernel");
}

}  // namespace fp8lab::cuda

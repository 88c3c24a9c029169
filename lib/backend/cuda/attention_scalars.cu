#include "backend/cuda/attention_scalars.h"

#include "backend/cuda/cuda_check.h"
#include "core/float_bits.h"

namespace fp8lab::cuda {
namespace {

__global__ void invert_scales_kernel(RoleScalars a, RoleScalars b) {
  const RoleScalars& role = threadIdx.x == 0 ? a : b;
  *role.inverse = 1.0f / *role.scale;
}

__global__ void raise_amaxes_kernel(RoleScalars a, RoleScalars b) {
  const RoleScalars& role = threadIdx.x == 0 ? a : b;
  if (role.amax == nullptr) return;
  const std::uint32_t before = float_bits(*role.amax) & kFloatMagnitudeMask, now = float_bits(*role.seen) & kFloatMagnitudeMask;
  *role.amax = float_from_bits(before > now ? before : now);
}

}  // namespace

void invert_scales(const RoleScalars& a, const RoleScalars& b, cudaStream_t stream) {
  invert_scales_kernel<<<1, 2, 0, stream>>>(a, b);
  cuda_check_launch("invert_scales_kernel");
}

void raise_amaxes(const RoleScalars& a, const RoleScalars& b, cudaStream_t stream) {
  raise_amaxes_kernel<<<1, 2, 0, stream>>>(a, b);
  cuda_check_launch("raise_amaxes_kernel");
}

}  // namespace fp8lab::cuda

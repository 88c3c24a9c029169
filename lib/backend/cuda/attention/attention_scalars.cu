#include <algorithm>
#include <cstdint>

#include "backend/cuda/attention/attention_scalars.h"
#include "backend/cuda/cuda_check.h"
#include "core/check.h"
#include "core/float_bits.h"

namespace fp8lab::cuda {
namespace {

constexpr float kLargestApplied = 0x1p127f;

struct Roles {
  static constexpr int kMost = 8;
  RoleScalars all[kMost];
  int count;
};

__global__ void prepare_scales_kernel(const __grid_constant__ Roles roles) {
  for (int i = 0; i < roles.count; ++i) {
    const RoleScalars& role = roles.all[i];
    float scale = *role.scale;
    if (role.applied != nullptr) {
      // Tensors of next to nothing have a scale of FLT_MAX. Divided by a factor below 1 it would be infinite, and zeros
      // would become NaN.
      const float largest = kLargestApplied * role.factor;
      if (scale > largest) scale = largest;
      *role.applied = scale / role.factor;
    }
    *role.inverse = role.factor / scale;
  }
}

__global__ void raise_amaxes_kernel(const __grid_constant__ Roles roles) {
  for (int i = 0; i < roles.count; ++i) {
    const RoleScalars& role = roles.all[i];
    if (role.amax == nullptr || role.seen == nullptr) continue;
    const std::uint32_t before = float_bits(*role.amax) & kFloatMagnitudeMask;
    const std::uint32_t now = float_bits(*role.seen / role.factor) & kFloatMagnitudeMask;
    *role.amax = float_from_bits(before > now ? before : now);
  }
}

Roles listed(std::span<const RoleScalars> roles) {
  check(roles.size() <= Roles::kMost, "attention has more roles than fit one launch");
  Roles list{.all = {}, .count = static_cast<int>(roles.size())};
  std::copy(roles.begin(), roles.end(), list.all);
  return list;
}

}  // namespace

void prepare_scales(std::span<const RoleScalars> roles, cudaStream_t stream) {
  prepare_scales_kernel<<<1, 1, 0, stream>>>(listed(roles));
  cuda_check_launch("prepare_scales_kernel");
}

void raise_amaxes(std::span<const RoleScalars> roles, cudaStream_t stream) {
  raise_amaxes_kernel<<<1, 1, 0, stream>>>(listed(roles));
  cuda_check_launch("raise_amaxes_kernel");
}

}  // namespace fp8lab::cuda

#include <algorithm>
#include <cmath>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/magnitudes.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/quantize/device/block_scale.cuh"

namespace fp8lab::cuda {
namespace {

constexpr int kUpdateThreads = 256;
constexpr int kUpdateRows = 4;  // rows of history per thread and batch
constexpr int kUpdateTensors = 256;

/// A range of tensors, one per block; their limits are passed in the launch's arguments.
struct UpdateRun {
  float* history;
  float* scale;
  std::int64_t length;
  std::int64_t stride;
  bool max;
  float fp8_max[kUpdateTensors];
};

__global__ void delayed_update_kernel(const __grid_constant__ UpdateRun run) {
  __shared__ std::uint32_t words[kUpdateThreads / 32];
  float* const history = run.history + blockIdx.x;
  const float last = history[0];
  if (last == 0.0f) return;
  std::uint32_t largest = run.max ? 0u : magnitude(last);
  // Rows move up by one, in batches: all rows of a batch, and the one after it, are read before any is written.
  for (std::int64_t first = 0; first < run.length; first += kUpdateThreads * kUpdateRows) {
    float below[kUpdateRows];
    for (int k = 0; k < kUpdateRows; ++k) {
      const std::int64_t row = first + k * kUpdateThreads + threadIdx.x;
      if (row >= run.length) continue;
      const float own = history[row * run.stride];
      if (run.max && own > 0.0f) largest = max(largest, float_bits(own));  // false for NaN
      below[k] = row + 1 < run.length ? history[(row + 1) * run.stride] : last;
    }
    __syncthreads();
    for (int k = 0; k < kUpdateRows; ++k) {
      const std::int64_t row = first + k * kUpdateThreads + threadIdx.x;
      if (row < run.length) history[row * run.stride] = row == 0 ? 0.0f : below[k];
    }
    __syncthreads();
  }
  largest = block_max(largest, words);
  if (threadIdx.x != 0) return;
  const float amax = run.max ? float_from_bits(largest) : last;
  if (amax > 0.0f && amax <= kFloatMax)
    run.scale[blockIdx.x] = fp8lab::scale_from_amax(amax, run.fp8_max[blockIdx.x], 0.0f, false);
}

}  // namespace

void delayed_update(const DelayedUpdateArgs& args, ExecContext& context) {
  for (std::int64_t first = 0; first < args.tensors; first += kUpdateTensors) {
    const std::int64_t count = std::min<std::int64_t>(kUpdateTensors, args.tensors - first);
    UpdateRun run{.history = args.history + first,
                  .scale = args.scale + first,
                  .length = args.length,
                  .stride = args.tensors,
                  .max = args.algorithm == AmaxAlgorithm::kMax};
    for (std::int64_t i = 0; i < count; ++i)
      run.fp8_max[i] = std::ldexp(args.fp8_max[static_cast<std::size_t>(first + i)], -args.margin);
    delayed_update_kernel<<<static_cast<unsigned>(count), kUpdateThreads, 0, cuda_context(context).stream()>>>(run);
    cuda_check_launch("delayed_update_kernel");
  }
}

}  // namespace fp8lab::cuda

#include <algorithm>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/quantize/device/block_scale.cuh"
#include "backend/cuda/quantize/device/vector_cast.cuh"
#include "backend/cuda/quantize/quantize_paths.h"
#include "backend/cuda/quantize/quantize_types.h"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVectors = 4;  // vectors in flight per thread
constexpr std::int64_t kChunk = std::int64_t{kThreads} * kVectors * 8;

struct Run {
  const std::byte* in;
  std::uint8_t* data;
  std::int64_t count;
  const float* scale;
  const float* measured;
  ScaleRule rule;
  float* scale_inv;
  float* amax;
};

template <DType In, DType Float8>
__global__ void __launch_bounds__(kThreads) quantize_run_kernel(Run run) {
  __shared__ std::uint32_t words[kThreads / 32];
  constexpr int kBytes = kBytesOf<In>;
  // The last chunk comes first: the elements that were written or read last may still be in the L2 cache.
  const std::int64_t first = (gridDim.x - 1 - blockIdx.x) * kChunk;
  std::uint32_t largest = 0;
  if (first + kChunk <= run.count) {
    Vector<In, 8> vectors[kVectors];
#pragma unroll
    for (int k = 0; k < kVectors; ++k)
      vectors[k].load_read_only(run.in + (first + (k * kThreads + threadIdx.x) * 8) * kBytes);
    // While the loads of the elements are in flight.
    const float scale = tensor_scale(run.scale, run.measured, run.rule);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      largest = Magnitudes<In>::larger(largest, Magnitudes<In>::folded(vectors[k]));
      cast_vector<Float8>(vectors[k], scale).store(run.data + first + (k * kThreads + threadIdx.x) * 8);
    }
  } else {
    const float scale = tensor_scale(run.scale, run.measured, run.rule);
    for (std::int64_t at = first + threadIdx.x * 8; at < run.count; at += kThreads * 8) {
      Vector<In, 8> vector;
      const int count = static_cast<int>(min(run.count - at, std::int64_t{8}));
      vector.load_some(run.in + at * kBytes, count);
      largest = Magnitudes<In>::larger(largest, Magnitudes<In>::folded(vector));
      const Vector<Float8, 8> data = cast_vector<Float8>(vector, scale);
      for (int j = 0; j < count; ++j) run.data[at + j] = data.byte(j);
    }
  }
  if (blockIdx.x == 0 && threadIdx.x == 0)
    *run.scale_inv = inverse_scale(tensor_scale(run.scale, run.measured, run.rule));
  if (run.amax == nullptr) return;
  largest = block_max(Magnitudes<In>::unfolded(largest), words);
  if (threadIdx.x == 0) raise_amax(run.amax, largest);
}

}  // namespace

void quantize_run(const TileTask& task, DType dtype, CudaContext& context) {
  const Run run{.in = task.in.data,
                .data = task.rowwise.values.as<std::uint8_t>(),
                .count = task.in.numel(),
                .scale = task.scale,
                .measured = task.measured,
                .rule = task.rule,
                .scale_inv = reinterpret_cast<float*>(task.rowwise.scales.data),
                .amax = task.amax};
  const auto blocks = static_cast<unsigned>(std::max<std::int64_t>((run.count + kChunk - 1) / kChunk, 1));
  for_types(task.in.dtype, dtype, [&]<DType In, DType Float8>() {
    quantize_run_kernel<In, Float8><<<blocks, kThreads, 0, context.stream()>>>(run);
  });
  cuda_check_launch("quantize_run_kernel");
}

}  // namespace fp8lab::cuda

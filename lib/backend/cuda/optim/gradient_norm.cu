#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/conversions.cuh"
#include "backend/cuda/device/lists.h"
#include "backend/cuda/device/pieces.cuh"
#include "backend/cuda/kernels.h"
#include "core/shape.h"

// Bitwise equal to the `cpu` kernels, except for the sign and payload of NaNs. A block sums one stretch, four lanes per
// thread; one more block adds up the stretches. The square of an f32 is exact in double, so a fused multiply-add rounds
// exactly like an addition.
namespace fp8lab::cuda {
namespace {

constexpr int kThreads = static_cast<int>(kSquareSumLanes / kVector);
constexpr int kRounds = static_cast<int>(kSquareSumStretch / kSquareSumLanes);

struct SumItem {
  std::int64_t end_piece = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const std::byte* data = nullptr;
  Strides strides;
  DType type{};
  bool vectors = false;
};

/// The sum of all lanes, neighbours first, returned to the first thread.
__device__ __forceinline__ double sum_of_lanes(const double (&lanes)[kVector]) {
  __shared__ double of_warps[kThreads / 32];
  double sum = (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return 0.0;
  sum = threadIdx.x < kThreads / 32 ? of_warps[threadIdx.x] : 0.0;
#pragma unroll
  for (int distance = 1; distance < kThreads / 32; distance *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
  return sum;
}

__global__ void __launch_bounds__(kThreads) square_sum_kernel(const SumItem* items, int count, double* sums) {
  const int index = item_of_piece(items, count, blockIdx.x);
  const SumItem item = items[index];
  const std::int64_t begin = (blockIdx.x - (index > 0 ? items[index - 1].end_piece : 0)) * kSquareSumStretch;
  const std::int64_t end = min(begin + kSquareSumStretch, item.rows * item.cols);
  const std::int64_t first = begin + threadIdx.x * kVector;
  double lanes[kVector] = {};
  if (item.vectors && end - begin == kSquareSumStretch) {
    constexpr int kTogether = 8;
#pragma unroll
    for (int round = 0; round < kRounds; round += kTogether) {
      FloatVector stored[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k)
        stored[k] = load_vector(item.data, first + (round + k) * kSquareSumLanes, item.type);
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        float x[kVector];
        widen_fast(stored[k], x, item.type);
#pragma unroll
        for (int i = 0; i < kVector; ++i)
          lanes[i] = __fma_rn(static_cast<double>(x[i]), static_cast<double>(x[i]), lanes[i]);
      }
    }
  } else {
    for (std::int64_t at = first; at < end; at += kSquareSumLanes)
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (at + i >= end) break;
        const std::int64_t row = (at + i) / item.cols, col = (at + i) - row * item.cols;
        const auto x =
            static_cast<double>(load1(item.data, item.type, row * item.strides.row + col * item.strides.col));
        lanes[i] = __fma_rn(x, x, lanes[i]);
      }
  }
  const double sum = sum_of_lanes(lanes);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) add_stretches_kernel(const double* sums, std::int64_t count, float* total) {
  double lanes[kVector] = {};
  constexpr int kTogether = 4;  // loads in flight together; additions stay in the loop's order
  for (std::int64_t first = threadIdx.x * kVector; first < count; first += kTogether * kSquareSumLanes) {
    double terms[kTogether][kVector];
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const std::int64_t at = first + k * kSquareSumLanes + i;
        terms[k][i] = at < count ? sums[at] : 0.0;
      }
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
#pragma unroll
      for (int i = 0; i < kVector; ++i) lanes[i] += terms[k][i];
  }
  const double sum = sum_of_lanes(lanes);
  if (threadIdx.x == 0) *total = static_cast<float>(sum);
}

__global__ void clip_coefficient_kernel(ClipCoefficientArgs args) {
  const float norm = sqrtf(*args.square_sum);
  const float quotient = args.max_norm / (norm + 1e-6f);
  *args.norm = norm;
  *args.coefficient = quotient >= 1.0f ? 1.0f : quotient;
}

struct SumLists {
  explicit SumLists(CudaContext&) {}
  PieceList<SumItem> items;
};

}  // namespace

void square_sum(const SquareSumArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  PieceList<SumItem>& list = gpu.kept<SumLists>().items;
  list.clear();
  for (const MatrixView& tensor : args.tensors)
    list.add({.rows = tensor.rows,
              .cols = tensor.cols,
              .data = tensor.data,
              .strides = strides_of(tensor),
              .type = tensor.dtype,
              .vectors = takes_vectors(tensor)},
             ceil_div(tensor.numel(), kSquareSumStretch));
  const std::int64_t stretches = list.pieces();
  auto* const sums = reinterpret_cast<double*>(gpu.scratch(static_cast<std::size_t>(stretches) * sizeof(double)));
  if (stretches > 0) {
    const SumItem* items = gpu.upload(list.items());
    square_sum_kernel<<<static_cast<unsigned>(stretches), kThreads, 0, gpu.stream()>>>(
        items, static_cast<int>(list.items().size()), sums);
    cuda_check_launch("square_sum_kernel");
  }
  add_stretches_kernel<<<1, kThreads, 0, gpu.stream()>>>(sums, stretches, args.sum);
  cuda_check_launch("add_stretches_kernel");
}

void clip_coefficient(const ClipCoefficientArgs& args, ExecContext& context) {
  clip_coefficient_kernel<<<1, 1, 0, cuda_context(context).stream()>>>(args);
  cuda_check_launch("clip_coefficient_kernel");
}

}  // namespace fp8lab::cuda

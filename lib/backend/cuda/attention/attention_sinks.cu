#include <algorithm>
#include <cstdint>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/device/attention_rules.cuh"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/device/sums.cuh"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;

/// A block adds up a head, in double, so that the order of the sum has no effect on the rounded result.
__global__ void __launch_bounds__(kThreads)
    attention_sinks_kernel(const __grid_constant__ AttentionBackwardArgs args, const QueryDots dots) {
  __shared__ double shared[kThreads / 32];
  const AttentionShape& shape = args.shape;
  const std::int64_t head = blockIdx.x, tiles = (shape.seq + dots.tile - 1) / dots.tile;
  const float sink = load_element(args.sinks, 0, head);
  double sum = 0;
  for (std::int64_t at = threadIdx.x; at < shape.batch * shape.seq; at += kThreads) {
    const std::int64_t query = at % shape.seq, line = at / shape.seq * shape.heads + head;
    const float lse = reinterpret_cast<const float*>(args.lse.data)[line * args.lse.row_stride + query];
    const float dot = dots.data[(line * tiles + query / dots.tile) * dots.tile_step + query % dots.tile];
    sum += static_cast<double>(exponential(sink - lse)) * static_cast<double>(dot);
  }
  sum = join_warps<kThreads / 32>(join_warp(sum), shared);
  if (threadIdx.x == 0)
    store_element(args.grad_sinks, 0, head, dots.negative ? static_cast<float>(sum) : -static_cast<float>(sum));
}

/// The logarithm of a query's sum of exponentials, without the sink.
__device__ float& lse_of(const AttentionForwardArgs& args, std::int64_t token, std::int64_t head) {
  const AttentionShape& shape = args.shape;
  const std::int64_t line = token % shape.batch * shape.heads + head;
  return reinterpret_cast<float*>(args.lse.data)[line * args.lse.row_stride + token / shape.batch];
}

/// A thread multiplies a run of O by what the keys have of the sum.
template <int Type>
__global__ void __launch_bounds__(kThreads)
    attention_shares_kernel(const __grid_constant__ AttentionForwardArgs args, const Elements o) {
  const std::int64_t dim = args.shape.columns_of_value(), runs = args.o.cols / kRunWidth;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; at < args.o.rows * runs;
       at += step) {
    const std::int64_t token = at / runs, col = at % runs * kRunWidth, head = col / dim;
    const float share = merge_log_sums(lse_of(args, token, head), load_element(args.sinks, 0, head)).share_of_a;
    float values[kRunWidth];
    load_run<Type>(o, token, col, kRunWidth, values);
#pragma unroll
    for (float& value : values) value *= share;
    store_run<Type>(values, o, token, col, kRunWidth);
  }
}

__global__ void __launch_bounds__(kThreads)
    attention_join_sinks_kernel(const __grid_constant__ AttentionForwardArgs args) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= args.o.rows * args.shape.heads) return;
  const std::int64_t head = at % args.shape.heads;
  float& lse = lse_of(args, at / args.shape.heads, head);
  lse = merge_log_sums(lse, load_element(args.sinks, 0, head)).log_sum;
}

unsigned blocks_of(std::int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace

void attention_join_sinks(const AttentionForwardArgs& args, CudaContext& context) {
  if (args.sinks.data == nullptr) return;
  constexpr std::int64_t kMostThreads = std::int64_t{1} << 24;
  const unsigned blocks = blocks_of(std::min(args.o.rows * (args.o.cols / kRunWidth), kMostThreads));
  if (args.o.dtype == DType::kBF16)
    attention_shares_kernel<static_cast<int>(DType::kBF16)>
        <<<blocks, kThreads, 0, context.stream()>>>(args, elements(args.o));
  else
    attention_shares_kernel<kRealTypes><<<blocks, kThreads, 0, context.stream()>>>(args, elements(args.o));
  cuda_check_launch("attention_shares_kernel");
  attention_join_sinks_kernel<<<blocks_of(args.o.rows * args.shape.heads), kThreads, 0, context.stream()>>>(args);
  cuda_check_launch("attention_join_sinks_kernel");
}

void attention_sink_gradients(const AttentionBackwardArgs& args, const QueryDots& dots, CudaContext& context) {
  if (args.sinks.data == nullptr) return;
  attention_sinks_kernel<<<static_cast<unsigned>(args.shape.heads), kThreads, 0, context.stream()>>>(args, dots);
  cuda_check_launch("attention_sinks_kernel");
}

}  // namespace fp8lab::cuda

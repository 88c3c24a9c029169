#include <algorithm>
#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/kernels.h"
#include "core/elementary.h"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;

__device__ float* floats(const MatrixView& view) { return reinterpret_cast<float*>(view.data); }

/// A warp merges one head of one token at a time.
__global__ void __launch_bounds__(kThreads) attention_merge_kernel(const __grid_constant__ AttentionMergeArgs args) {
  const std::int64_t head_dim = args.o.cols / args.heads, all = args.o.rows * args.heads;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kThreads / kWarp);
  std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  for (; at < all; at += warps) {
    const std::int64_t row = at / args.heads, head = at % args.heads;
    const std::int64_t position = row / args.batch, lse_row = row % args.batch * args.heads + head;
    float* const lse = floats(args.lse) + lse_row * args.lse.row_stride + position;
    const float part_lse = floats(args.part_lse)[lse_row * args.part_lse.row_stride + position];
    const MergedLogSums merged = merge_log_sums(*lse, part_lse);
    __syncwarp();  // every lane has read *lse
    if (lane == 0) *lse = merged.log_sum;
    float* const o = floats(args.o) + row * args.o.row_stride + head * head_dim;
    const float* const part_o = floats(args.part_o) + row * args.part_o.row_stride + head * head_dim;
    for (std::int64_t d = lane; d < head_dim; d += kWarp)
      o[d] = o[d] * merged.share_of_a + part_o[d] * merged.share_of_b;
  }
}

}  // namespace

void attention_merge(const AttentionMergeArgs& args, ExecContext& context) {
  constexpr std::int64_t kMostBlocks = 65535;
  const std::int64_t blocks = (args.o.rows * args.heads + kThreads / kWarp - 1) / (kThreads / kWarp);
  if (blocks == 0) return;
  attention_merge_kernel<<<static_cast<unsigned>(std::min(blocks, kMostBlocks)), kThreads, 0,
                           cuda_context(context).stream()>>>(args);
  cuda_check_launch("attention_merge_kernel");
}

}  // namespace fp8lab::cuda

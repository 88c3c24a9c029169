#include "backend/cuda/attention/attention_tensor.h"
#include "backend/cuda/attention/device/attention_matrix.cuh"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/conversions.cuh"

// Kernels that run before and after the products of attention's backward: sums of dO * O for each query, and dQ from
// its sums.
namespace fp8lab::cuda {
namespace {

using namespace tensor_attention;

constexpr int kRowsAtOnce = 4;  // rows of a thread whose loads are in flight together
constexpr int kTileQueries = static_cast<int>(kBackwardQueries);

/// Computes TensorBackward::rows and zeroes the counters. Each lane handles four elements of a row; rows are in memory
/// order, positions beyond seq last.
__global__ void __launch_bounds__(kThreads) attention_tensor_rows_kernel(TensorBackward call, int query_tiles) {
  const AttentionShape& shape = call.shape;
  const MatrixView &o = call.o_data.values, &grad_o = call.grad_o_data.values;
  const int lanes = static_cast<int>(shape.head_dim) / kVector, lane = static_cast<int>(threadIdx.x) % lanes;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread < shape.batch * shape.heads * query_tiles * 2) call.arrivals[thread] = 0;
  if (thread == 0) *call.next_job = 0;
  const std::int64_t first = thread / lanes * kRowsAtOnce, valid = shape.batch * shape.heads * shape.seq;
  FloatVector o_stored[kRowsAtOnce] = {}, grad_o_stored[kRowsAtOnce] = {};
#pragma unroll
  for (int i = 0; i < kRowsAtOnce; ++i) {
    if (first + i >= valid) continue;
    const std::int64_t token = (first + i) / shape.heads,
                       col = (first + i) % shape.heads * shape.head_dim + lane * kVector;
    o_stored[i] = load_vector(o.data, token * o.row_stride + col, o.dtype);
    grad_o_stored[i] = load_vector(grad_o.data, token * grad_o.row_stride + col, grad_o.dtype);
  }
  const float logit_factor = logit_factor_of(call.q, call.k, shape);
  const double factor =
      -static_cast<double>(cuda::scale_inv_of(call.o_data)) / static_cast<double>(scale_inv_of(call.v));
#pragma unroll
  for (int i = 0; i < kRowsAtOnce; ++i) {
    float a[kVector], b[kVector];
    widen_fast(o_stored[i], a, o.dtype);
    widen_fast(grad_o_stored[i], b, grad_o.dtype);
    // In double: dS = P * (dP - dot) is a difference, so an FP32 error of the dot would be large relative to dS.
    double dot = 0;
#pragma unroll
    for (int e = 0; e < kVector; ++e) dot += static_cast<double>(a[e]) * static_cast<double>(b[e]);
    for (int distance = lanes / 2; distance > 0; distance /= 2) dot += __shfl_xor_sync(0xFFFFFFFFu, dot, distance);
    if (lane != 0) continue;
    const std::int64_t head = (first + i) % shape.heads, token = (first + i) / shape.heads;
    const std::int64_t query = token / shape.batch, row = token % shape.batch * shape.heads + head;
    float shift = kMinusInfinity;
    if (first + i < valid)
      shift = -shift_of(reinterpret_cast<const float*>(call.lse.data)[row * call.lse.row_stride + query]) * kLog2E /
              logit_factor;
    float* const out = call.rows + (row * query_tiles + query / kTileQueries) * 2 * kTileQueries + query % kTileQueries;
    out[0] = shift;
    out[kTileQueries] = static_cast<float>(dot * factor);
  }
}

/// A thread rounds eight columns of two rows: 64 bytes of the sums, which four neighbouring threads of the backward
/// kernel held as a block of eight columns in the layout of device/wgmma.cuh.
template <int Dim>
__global__ void __launch_bounds__(kThreads) attention_tensor_grad_q_kernel(TensorBackward call, int query_tiles) {
  // kBlocks: blocks of eight columns in one half of head_dim.
  constexpr int kBlocks = Dim / 16, kTileThreads = Dim * kTileQueries / 16;
  const AttentionShape& shape = call.shape;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t tile = thread / kTileThreads, line = tile / query_tiles;
  const int within = static_cast<int>(thread % kTileThreads);
  const int block = within % kBlocks, half = within / kBlocks % 2, quad = within / (2 * kBlocks);  // quad: 0 to 31
  const int row = quad / 8 * 16 + quad % 8;
  const float4* const from = reinterpret_cast<const float4*>(call.grad_q_sums) +
                             ((tile * 2 + half) * kBlocks + block) * wgmma::kGroupThreads + 4 * quad;
  const float4 a = from[0], b = from[1], c = from[2], d = from[3];
  const float factor = joint_factor(slope_factor(call), scale_inv_of(call.k), shape.softmax_scale);
  const float rows[2][2][kVector] = {{{a.x * factor, a.y * factor, b.x * factor, b.y * factor},
                                      {c.x * factor, c.y * factor, d.x * factor, d.y * factor}},
                                     {{a.z * factor, a.w * factor, b.z * factor, b.w * factor},
                                      {c.z * factor, c.w * factor, d.z * factor, d.w * factor}}};
  const std::int64_t sequence = line / shape.heads, head = line % shape.heads;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::int64_t query = tile % query_tiles * kTileQueries + row + 8 * i;
    if (query >= shape.seq) continue;
    const std::int64_t at =
        (query * shape.batch + sequence) * call.grad_q.row_stride + head * Dim + half * (Dim / 2) + 8 * block;
#pragma unroll
    for (int j = 0; j < 2; ++j)
      narrow(rows[i][j], call.grad_q.dtype).store(call.grad_q.data, at + 4 * j, call.grad_q.dtype);
  }
}

int query_tiles_of(const AttentionShape& shape) {
  return static_cast<int>((shape.seq + kTileQueries - 1) / kTileQueries);
}

}  // namespace

void prepare_tensor_backward(const TensorBackward& call, CudaContext& context) {
  const AttentionShape& shape = call.shape;
  const std::int64_t tiles = shape.batch * shape.heads * query_tiles_of(shape);
  const std::int64_t tile_threads = kTileQueries / kRowsAtOnce * shape.head_dim / kVector;  // 256 or 512
  attention_tensor_rows_kernel<<<static_cast<unsigned>(tiles * tile_threads / kThreads), kThreads, 0,
                                 context.stream()>>>(call, query_tiles_of(shape));
  cuda_check_launch("attention_tensor_rows_kernel");
}

void finish_tensor_backward(const TensorBackward& call, CudaContext& context) {
  const AttentionShape& shape = call.shape;
  const std::int64_t tiles = shape.batch * shape.heads * query_tiles_of(shape);
  const auto blocks = static_cast<unsigned>(tiles * kTileQueries * shape.head_dim / 16 / kThreads);
  if (shape.head_dim == 128)
    attention_tensor_grad_q_kernel<128><<<blocks, kThreads, 0, context.stream()>>>(call, query_tiles_of(shape));
  else
    attention_tensor_grad_q_kernel<64><<<blocks, kThreads, 0, context.stream()>>>(call, query_tiles_of(shape));
  cuda_check_launch("attention_tensor_grad_q_kernel");
}

}  // namespace fp8lab::cuda

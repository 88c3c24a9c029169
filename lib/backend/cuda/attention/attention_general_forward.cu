#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/device/attention_tiles.cuh"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"

// Attention for any head dimension, type and stride in FP32, bit for bit the `cpu` kernel: same tiles, same order of
// every sum. (Only the logarithm in lse comes from another library; it is rounded from double, so it differs in about
// one of 2^28 rows.) A tile of queries passes over the keys three times: for the maximum, for the sum, and for P V,
// since P is cast relative to the final lse.
namespace fp8lab::cuda {
namespace {

using namespace general_attention;

constexpr int kOutCols = 128;  // columns of a value per block; further blocks compute the others
constexpr int kLanes = 8;

struct Shared {
  Operands operands;
  Tile p;
  float v[kKeys][kDepth + 1];
  float lse[kQueries];
};

/// Raises a thread's maxima of its two rows to the largest of its logits; a NaN counts as none.
__device__ void raise_maxima(const Tile& logits, float (&maxima)[2]) {
  const int across = static_cast<int>(threadIdx.x % 16), down = static_cast<int>(threadIdx.x / 16);
  for (int i = 0; i < 2; ++i)
    for (int c = 0; c < 4; ++c) {
      const float logit = logits[2 * down + i][across + 16 * c];
      maxima[i] = logit > maxima[i] ? logit : maxima[i];
    }
}

__global__ void __launch_bounds__(kThreads)
    attention_general_forward_kernel(AttentionForwardArgs args, int query_tiles) {
  __shared__ Shared shared;
  const AttentionShape& shape = args.shape;
  const std::int64_t tile = blockIdx.x % query_tiles, job = blockIdx.x / query_tiles;
  const std::int64_t head = job % shape.heads, sequence = job / shape.heads;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.y) * kOutCols;
  const std::int64_t first_query = tile * kQueries;
  const HeadColumns q_head{shape.batch, sequence, head, shape.head_dim, shape.seq};
  HeadColumns k_head = q_head;
  k_head.head = head / (shape.heads / shape.kv_heads);
  HeadColumns v_head = k_head;
  v_head.head_dim = shape.columns_of_value();
  const std::int64_t rows = min(static_cast<std::int64_t>(kQueries), shape.seq - first_query);
  const std::int64_t limit = shape.end_key(first_query + rows - 1);
  const std::int64_t begin = shape.first_key(first_query) / kKeys * kKeys;
  const float factor = joint_factor(scale_inv_of(args.q), scale_inv_of(args.k), shape.softmax_scale);
  const int thread = static_cast<int>(threadIdx.x);
  const int across = thread % 16, down = thread / 16;
  const auto logits_of = [&](std::int64_t key) {
    compute_logits(args.q, q_head, first_query, args.k, k_head, key, shape, factor, shared.operands, shared.p);
    __syncthreads();
  };

  float maxima[2] = {kMinusInfinity, kMinusInfinity};
  for (std::int64_t key = begin; key < limit; key += kKeys) {
    logits_of(key);
    raise_maxima(shared.p, maxima);
  }
  for (int i = 0; i < 2; ++i) {
    for (int distance = 8; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFu, maxima[i], distance);
      maxima[i] = other > maxima[i] ? other : maxima[i];
    }
    if (across == 0) shared.lse[2 * down + i] = shift_of(maxima[i]);
  }

  // Eight threads per row, each with one of the kLanes partial sums.
  double sum = 0;
  for (std::int64_t key = begin; key < limit; key += kKeys) {
    logits_of(key);
    const float shift = shared.lse[thread / kLanes];
    float lane = 0.0f;
    for (int j = thread % kLanes; j < kKeys; j += kLanes) lane += exponential(shared.p[thread / kLanes][j] - shift);
    for (int source = 0; source < kLanes; ++source)
      sum += static_cast<double>(__shfl_sync(0xFFFFFFFFu, lane, source, kLanes));
  }
  __syncthreads();
  if (thread % kLanes == 0) {
    const int row = thread / kLanes;
    float lse = static_cast<float>(static_cast<double>(shared.lse[row]) + log(sum));
    if (args.sinks.data != nullptr) lse = merge_log_sums(lse, load_element(args.sinks, 0, head)).log_sum;
    shared.lse[row] = lse;
    if (row < rows && first_col == 0)
      reinterpret_cast<float*>(
          args.lse.data)[(sequence * shape.heads + head) * args.lse.row_stride + first_query + row] = lse;
  }
  __syncthreads();

  const AttentionDropout dropout(shape, sequence, head);
  AttentionCast s_cast(args.s);
  float o[2][kOutCols / 16] = {};
  for (std::int64_t key = begin; key < limit; key += kKeys) {
    logits_of(key);
    for (int i = 0; i < 2; ++i)
      for (int c = 0; c < 4; ++c) {
        const int row = 2 * down + i, col = across + 16 * c;
        float p = exponential(shared.p[row][col] - shift_of(shared.lse[row]));
        if (dropout.active()) p *= dropout.factor(first_query + row, key + col);
        shared.p[row][col] = row < rows ? s_cast.apply(p) : 0.0f;
      }
    const int keys = static_cast<int>(min(static_cast<std::int64_t>(kKeys), limit - key));
    for (int cols = 0; cols < kOutCols / kDepth; ++cols) {
      __syncthreads();
      load_tile<kKeys, kDepth>(args.v.values, v_head, key, first_col + cols * kDepth, shared.v);
      __syncthreads();
      float sums[2][2] = {};
      for (int j = 0; j < keys; ++j)
        for (int i = 0; i < 2; ++i)
          for (int c = 0; c < 2; ++c) sums[i][c] += shared.p[2 * down + i][j] * shared.v[j][across + 16 * c];
      // `o` stays in registers only if it is indexed by constants, hence the unrolled search for the chunk.
#pragma unroll
      for (int at = 0; at < kOutCols / kDepth; ++at)
        if (at == cols)
          for (int i = 0; i < 2; ++i)
            for (int c = 0; c < 2; ++c) o[i][2 * at + c] += sums[i][c];
    }
    __syncthreads();
  }
  const float o_factor = joint_factor(s_cast.scale_inv(), scale_inv_of(args.v));
  for (int i = 0; i < 2; ++i)
    for (int c = 0; c < kOutCols / 16; ++c) {
      const std::int64_t query = first_query + 2 * down + i, col = first_col + across + 16 * c;
      if (query < shape.seq && col < v_head.head_dim)
        store_element(args.o, query * shape.batch + sequence, head * v_head.head_dim + col, o[i][c] * o_factor);
    }
  s_cast.store_amax(args.s);
}

}  // namespace

void attention_general_forward(const AttentionForwardArgs& args, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const std::int64_t query_tiles = (shape.seq + kQueries - 1) / kQueries;
  const dim3 grid(static_cast<unsigned>(query_tiles * shape.heads * shape.batch),
                  static_cast<unsigned>((shape.columns_of_value() + kOutCols - 1) / kOutCols));
  if (grid.x == 0) return;
  attention_general_forward_kernel<<<grid, kThreads, 0, context.stream()>>>(args, static_cast<int>(query_tiles));
  cuda_check_launch("attention_general_forward_kernel");
}

}  // namespace fp8lab::cuda

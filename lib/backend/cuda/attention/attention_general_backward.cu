#include <algorithm>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/device/attention_tiles.cuh"
#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"

// The gradient of attention for any head dimension, type and stride in FP32, bit for bit the `cpu` kernel. One launch
// computes the row sums of dO * O, one dQ by tiles of queries, one dK and dV by tiles of keys. The last two each
// compute P and dS again, so no sum is shared by two blocks and every sum has the order that it has on the host.
namespace fp8lab::cuda {
namespace {

using namespace general_attention;

constexpr int kQueryOutCols = 128;  // columns of a head per block; further blocks compute the others
constexpr int kKeyOutCols = 64;

__global__ void __launch_bounds__(kThreads) attention_row_dots_kernel(AttentionBackwardArgs args, float* row_dots) {
  const AttentionShape& shape = args.shape;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= shape.batch * shape.heads * shape.seq) return;
  const std::int64_t query = row % shape.seq, head = row / shape.seq % shape.heads,
                     sequence = row / shape.seq / shape.heads;
  const std::int64_t token = query * shape.batch + sequence;
  // In double: dS = P * (dP - dot) is a difference, so an FP32 error of the dot would be large relative to dS.
  double dot = 0;
  const std::int64_t cols = shape.columns_of_value();
  for (std::int64_t col = head * cols; col < (head + 1) * cols; ++col)
    dot += static_cast<double>(load_element(args.o.values, token, col)) *
           static_cast<double>(load_element(args.grad_o.values, token, col));
  row_dots[row] =
      static_cast<float>(dot * static_cast<double>(joint_factor(scale_inv_of(args.grad_o), scale_inv_of(args.o))));
}

/// Arguments and factors that a tile of queries by keys needs.
struct Pass {
  const AttentionBackwardArgs& args;
  HeadColumns q_head;
  HeadColumns k_head;
  HeadColumns o_head;
  HeadColumns v_head;
  float logit_factor;
  float grad_p_factor;  ///< dP = this * (product of stored dO and V)
  AttentionDropout dropout;
  const float* lse;  ///< lse of the head's queries
  const float* row_dots;

  __device__ Pass(const AttentionBackwardArgs& a, std::int64_t sequence, std::int64_t head, const float* all_row_dots)
      : args(a),
        q_head{a.shape.batch, sequence, head, a.shape.head_dim, a.shape.seq},
        k_head{a.shape.batch, sequence, head / (a.shape.heads / a.shape.kv_heads), a.shape.head_dim, a.shape.seq},
        o_head(q_head),
        v_head(k_head),
        logit_factor(joint_factor(scale_inv_of(a.q), scale_inv_of(a.k), a.shape.softmax_scale)),
        grad_p_factor(joint_factor(scale_inv_of(a.grad_o), scale_inv_of(a.v))),
        dropout(a.shape, sequence, head),
        lse(reinterpret_cast<const float*>(a.lse.data) + (sequence * a.shape.heads + head) * a.lse.row_stride),
        row_dots(all_row_dots + (sequence * a.shape.heads + head) * a.shape.seq) {
    o_head.head_dim = v_head.head_dim = a.shape.columns_of_value();
  }
};

/// `p` becomes P as the product for dV reads it (after dropout and cast), `grad_s` becomes dS as the products for dQ
/// and dK read it (cast). Both are zero in rows beyond the sequence.
__device__ void differentiate_softmax(const Pass& pass, std::int64_t first_query, std::int64_t first_key,
                                      AttentionCast& s_cast, AttentionCast& grad_p_cast, Operands& operands, Tile& p,
                                      Tile& grad_s) {
  compute_logits(pass.args.q, pass.q_head, first_query, pass.args.k, pass.k_head, first_key, pass.args.shape,
                 pass.logit_factor, operands, p);
  float products[2][4];
  multiply_rows(pass.args.grad_o.values, pass.o_head, first_query, pass.args.v.values, pass.v_head, first_key, operands,
                products);
  const int across = static_cast<int>(threadIdx.x % 16), down = static_cast<int>(threadIdx.x / 16);
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * down + i;
    const std::int64_t query = first_query + row;
    const bool inside = query < pass.q_head.seq;
    const float shift = inside ? shift_of(pass.lse[query]) : 0.0f;
    const float dot = inside ? pass.row_dots[query] : 0.0f;
    for (int c = 0; c < 4; ++c) {
      const int col = across + 16 * c;
      const float weight = exponential(p[row][col] - shift);
      const float kept = pass.dropout.active() ? pass.dropout.factor(query, first_key + col) : 1.0f;
      const float grad_p = (products[i][c] * pass.grad_p_factor) * kept;
      grad_s[row][col] = inside ? grad_p_cast.apply(weight * (grad_p - dot)) : 0.0f;
      p[row][col] = inside ? s_cast.apply(weight * kept) : 0.0f;
    }
  }
  __syncthreads();
}

struct QueryShared {
  Operands operands;
  Tile p;
  Tile grad_s;
};

__global__ void __launch_bounds__(kThreads)
    attention_general_grad_q_kernel(AttentionBackwardArgs args, const float* row_dots, int query_tiles) {
  __shared__ QueryShared shared;
  const AttentionShape& shape = args.shape;
  const std::int64_t tile = blockIdx.x % query_tiles, job = blockIdx.x / query_tiles;
  const std::int64_t head = job % shape.heads, sequence = job / shape.heads;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.y) * kQueryOutCols;
  const std::int64_t first_query = tile * kQueries;
  const Pass pass(args, sequence, head, row_dots);
  AttentionCast s_cast(args.s), grad_p_cast(args.grad_p);
  const std::int64_t limit =
      shape.causal ? min(first_query + static_cast<std::int64_t>(kQueries), shape.seq) : shape.seq;
  const int across = static_cast<int>(threadIdx.x % 16), down = static_cast<int>(threadIdx.x / 16);

  float grad_q[2][kQueryOutCols / 16] = {};
  for (std::int64_t key = shape.first_key(first_query) / kKeys * kKeys; key < limit; key += kKeys) {
    differentiate_softmax(pass, first_query, key, s_cast, grad_p_cast, shared.operands, shared.p, shared.grad_s);
    const int keys = static_cast<int>(min(static_cast<std::int64_t>(kKeys), limit - key));
    for (int cols = 0; cols < kQueryOutCols / kDepth; ++cols) {
      __syncthreads();
      load_tile<kKeys, kDepth>(args.k.values, pass.k_head, key, first_col + cols * kDepth, shared.operands.b);
      __syncthreads();
      float sums[2][2] = {};
      for (int j = 0; j < keys; ++j)
        for (int i = 0; i < 2; ++i)
          for (int c = 0; c < 2; ++c)
            sums[i][c] += shared.grad_s[2 * down + i][j] * shared.operands.b[j][across + 16 * c];
      // `grad_q` stays in registers only if it is indexed by constants, hence the unrolled search for the chunk.
#pragma unroll
      for (int at = 0; at < kQueryOutCols / kDepth; ++at)
        if (at == cols)
          for (int i = 0; i < 2; ++i)
            for (int c = 0; c < 2; ++c) grad_q[i][2 * at + c] += sums[i][c];
    }
    __syncthreads();
  }
  const float factor = joint_factor(grad_p_cast.scale_inv(), scale_inv_of(args.k), shape.softmax_scale);
  for (int i = 0; i < 2; ++i)
    for (int c = 0; c < kQueryOutCols / 16; ++c) {
      const std::int64_t query = first_query + 2 * down + i, col = first_col + across + 16 * c;
      if (query < shape.seq && col < shape.head_dim)
        store_element(args.grad_q, query * shape.batch + sequence, head * shape.head_dim + col, grad_q[i][c] * factor);
    }
}

struct KeyShared {
  union {
    Operands operands;
    struct {
      float q[kQueries][kKeyOutCols + 1];
      float grad_o[kQueries][kKeyOutCols + 1];
    };
  };
  Tile p;
  Tile grad_s;
};

/// A thread's part of a [kKeys, kKeyOutCols] gradient: keys down + 16 * r, columns across + 16 * c.
struct KeyGradient {
  float at[4][4] = {};

  __device__ void add(const KeyGradient& other) {
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c) at[r][c] += other.at[r][c];
  }
  /// Adds the tile's sum over its queries, which is added up in order.
  __device__ void add_product(const Tile& left, const float (&right)[kQueries][kKeyOutCols + 1], int rows) {
    const int across = static_cast<int>(threadIdx.x % 16), down = static_cast<int>(threadIdx.x / 16);
    KeyGradient sums;
    for (int i = 0; i < rows; ++i)
      for (int r = 0; r < 4; ++r)
        for (int c = 0; c < 4; ++c) sums.at[r][c] += left[i][down + 16 * r] * right[i][across + 16 * c];
    add(sums);
  }
  __device__ void store(const MatrixView& out, const HeadColumns& head, std::int64_t first_key, std::int64_t first_col,
                        float factor) const {
    const int across = static_cast<int>(threadIdx.x % 16), down = static_cast<int>(threadIdx.x / 16);
    for (int r = 0; r < 4; ++r)
      for (int c = 0; c < 4; ++c) {
        const std::int64_t key = first_key + down + 16 * r, col = first_col + across + 16 * c;
        if (key < head.seq && col < head.head_dim)
          store_element(out, key * head.batch + head.sequence, head.head * head.head_dim + col, at[r][c] * factor);
      }
  }
};

__global__ void __launch_bounds__(kThreads)
    attention_general_grad_kv_kernel(AttentionBackwardArgs args, const float* row_dots, int key_tiles) {
  __shared__ KeyShared shared;
  const AttentionShape& shape = args.shape;
  const std::int64_t tile = blockIdx.x % key_tiles, job = blockIdx.x / key_tiles;
  const std::int64_t kv_head = job % shape.kv_heads, sequence = job / shape.kv_heads;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.y) * kKeyOutCols;
  const std::int64_t first_key = tile * kKeys;
  const std::int64_t members = shape.heads / shape.kv_heads;
  AttentionCast s_cast(args.s), grad_p_cast(args.grad_p);

  // The queries that see a key of this tile: none before it under the causal mask, none beyond the window.
  const std::int64_t first_query = shape.causal ? first_key / kQueries * kQueries : 0;
  const std::int64_t end_query =
      shape.window == 0 ? shape.seq : min(shape.seq, first_key + static_cast<std::int64_t>(kKeys) + shape.window - 1);

  KeyGradient group_k, group_v;
  const HeadColumns k_head{shape.batch, sequence, kv_head, shape.head_dim, shape.seq};
  HeadColumns v_head = k_head;
  v_head.head_dim = shape.columns_of_value();
  for (std::int64_t member = 0; member < members; ++member) {
    const Pass pass(args, sequence, kv_head * members + member, row_dots);
    KeyGradient grad_k, grad_v;
    for (std::int64_t query = first_query; query < end_query; query += kQueries) {
      differentiate_softmax(pass, query, first_key, s_cast, grad_p_cast, shared.operands, shared.p, shared.grad_s);
      load_tile<kQueries, kKeyOutCols>(args.q.values, pass.q_head, query, first_col, shared.q);
      load_tile<kQueries, kKeyOutCols>(args.grad_o.values, pass.o_head, query, first_col, shared.grad_o);
      __syncthreads();
      const int rows = static_cast<int>(min(static_cast<std::int64_t>(kQueries), shape.seq - query));
      grad_v.add_product(shared.p, shared.grad_o, rows);
      grad_k.add_product(shared.grad_s, shared.q, rows);
      __syncthreads();
    }
    group_k.add(grad_k);
    group_v.add(grad_v);
  }
  group_k.store(args.grad_k, k_head, first_key, first_col,
                joint_factor(grad_p_cast.scale_inv(), scale_inv_of(args.q), shape.softmax_scale));
  group_v.store(args.grad_v, v_head, first_key, first_col, joint_factor(s_cast.scale_inv(), scale_inv_of(args.grad_o)));
  s_cast.store_amax(args.s);
  grad_p_cast.store_amax(args.grad_p);
}

unsigned blocks_of(std::int64_t elements, std::int64_t per_block) {
  return static_cast<unsigned>((elements + per_block - 1) / per_block);
}

}  // namespace

void attention_general_backward(const AttentionBackwardArgs& args, CudaContext& context) {
  const AttentionShape& shape = args.shape;
  const std::int64_t rows = shape.batch * shape.heads * shape.seq;
  if (rows == 0) return;
  auto* const row_dots = reinterpret_cast<float*>(context.scratch(static_cast<std::size_t>(rows) * sizeof(float)));
  attention_row_dots_kernel<<<blocks_of(rows, kThreads), kThreads, 0, context.stream()>>>(args, row_dots);
  cuda_check_launch("attention_row_dots_kernel");

  const unsigned query_tiles = blocks_of(shape.seq, kQueries);
  const dim3 query_grid(static_cast<unsigned>(query_tiles * shape.heads * shape.batch),
                        blocks_of(shape.head_dim, kQueryOutCols));
  attention_general_grad_q_kernel<<<query_grid, kThreads, 0, context.stream()>>>(args, row_dots,
                                                                                 static_cast<int>(query_tiles));
  cuda_check_launch("attention_general_grad_q_kernel");

  const unsigned key_tiles = blocks_of(shape.seq, kKeys);
  const dim3 key_grid(static_cast<unsigned>(key_tiles * shape.kv_heads * shape.batch),
                      blocks_of(std::max(shape.head_dim, shape.columns_of_value()), kKeyOutCols));
  attention_general_grad_kv_kernel<<<key_grid, kThreads, 0, context.stream()>>>(args, row_dots,
                                                                                static_cast<int>(key_tiles));
  cuda_check_launch("attention_general_grad_kv_kernel");
  attention_sink_gradients(args, {.data = row_dots, .tile = shape.seq, .tile_step = shape.seq}, context);
}

}  // namespace fp8lab::cuda

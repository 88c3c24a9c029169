#pragma once

#include <cstdint>

#include "backend/cuda/attention/device/attention_rules.cuh"

// Tiles of logits in FP32 for the general attention kernels, 256 threads per block, every sum in the order of
// cpu/attention/attention_tiles.h. Threads form a 16 x 16 grid; a thread holds rows 2 * down and 2 * down + 1 and
// columns across + 16 * c.
namespace fp8lab::cuda::general_attention {

inline constexpr int kThreads = 256;
inline constexpr int kQueries = 32;
inline constexpr int kKeys = 64;
inline constexpr int kDepth = 32;  ///< columns of head_dim in shared memory at a time

struct Operands {
  float a[kQueries][kDepth + 1];
  float b[kKeys][kDepth + 1];
};
using Tile = float[kQueries][kKeys + 1];

/// Selects the columns of one head and the rows of one sequence.
struct HeadColumns {
  std::int64_t batch;
  std::int64_t sequence;
  std::int64_t head;
  std::int64_t head_dim;
  std::int64_t seq;
};

/// Loads `Rows` rows from `first_row` and columns [first_col, first_col + Cols) of the head; zero outside of the
/// sequence and the head.
template <int Rows, int Cols, int Stride>
__device__ void load_tile(const MatrixView& matrix, const HeadColumns& head, std::int64_t first_row,
                          std::int64_t first_col, float (&out)[Rows][Stride]) {
  for (int i = static_cast<int>(threadIdx.x); i < Rows * Cols; i += kThreads) {
    const std::int64_t row = first_row + i / Cols, col = first_col + i % Cols;
    out[i / Cols][i % Cols] =
        row < head.seq && col < head.head_dim
            ? load_element(matrix, row * head.batch + head.sequence, head.head * head.head_dim + col)
            : 0.0f;
  }
}

/// sums[i][c] = sum over d of a(row i, d) * b(column c, d), in order of d.
__device__ inline void multiply_rows(const MatrixView& a, const HeadColumns& a_head, std::int64_t first_a,
                                     const MatrixView& b, const HeadColumns& b_head, std::int64_t first_b,
                                     Operands& shared, float (&sums)[2][4]) {
  const int across = static_cast<int>(threadIdx.x % 16), down = static_cast<int>(threadIdx.x / 16);
  for (auto& row : sums)
    for (float& sum : row) sum = 0.0f;
  for (std::int64_t depth = 0; depth < a_head.head_dim; depth += kDepth) {
    __syncthreads();
    load_tile<kQueries, kDepth>(a, a_head, first_a, depth, shared.a);
    load_tile<kKeys, kDepth>(b, b_head, first_b, depth, shared.b);
    __syncthreads();
    for (int d = 0; d < kDepth; ++d)
      for (int i = 0; i < 2; ++i)
        for (int c = 0; c < 4; ++c) sums[i][c] += shared.a[2 * down + i][d] * shared.b[across + 16 * c][d];
  }
}

/// Logits of a tile; -inf if masked or beyond the sequence.
__device__ inline void compute_logits(const OperandView& q, const HeadColumns& q_head, std::int64_t first_query,
                                      const OperandView& k, const HeadColumns& k_head, std::int64_t first_key,
                                      const AttentionShape& shape, float factor, Operands& shared, Tile& logits) {
  float sums[2][4];
  multiply_rows(q.values, q_head, first_query, k.values, k_head, first_key, shared, sums);
  const int across = static_cast<int>(threadIdx.x % 16), down = static_cast<int>(threadIdx.x / 16);
  for (int i = 0; i < 2; ++i)
    for (int c = 0; c < 4; ++c) {
      const std::int64_t query = first_query + 2 * down + i, key = first_key + across + 16 * c;
      const bool visible = key >= shape.first_key(query) && key < shape.end_key(query) && key < q_head.seq;
      logits[2 * down + i][across + 16 * c] = visible ? sums[i][c] * factor : kMinusInfinity;
    }
}

}  // namespace fp8lab::cuda::general_attention

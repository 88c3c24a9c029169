#pragma once

#include "backend/cuda/context.h"
#include "backend/kernels.h"

// Attention on Hopper's matrix units: what attention_tensor.cpp prepares and the kernels take.
namespace fp8lab::cuda {

/// A 16-bit operand; FP8 data have been widened to it exactly, and their scale is still to be multiplied with.
struct WideOperand {
  const std::byte* data = nullptr;   ///< of token 0, bf16
  std::int64_t row_stride = 0;       ///< elements from one token to the next, a multiple of 8
  const float* scale_inv = nullptr;  ///< null: 1
};

struct TensorForward {
  AttentionShape shape;
  WideOperand q;
  WideOperand k;
  WideOperand v;
  MatrixView o;
  MatrixView lse;
  AttentionRole s;
};

inline constexpr std::int64_t kBackwardQueries = 64;

struct TensorBackward {
  AttentionShape shape;
  WideOperand q;
  WideOperand k;
  WideOperand v;
  WideOperand grad_o;
  OperandView o_data;  ///< as the caller gave them, for `rows`
  OperandView grad_o_data;
  MatrixView lse;
  // Scratch, by tiles of kBackwardQueries queries of one head of one sequence.
  /// f32 [batch * heads, tiles, 2, kBackwardQueries]: what a query's products start at: minus its lse in units of Q
  /// K^T, 0 where that is infinite and -inf beyond seq; and minus its sum of dO * O in units of dO V^T.
  float* rows = nullptr;
  /// f32 [batch * heads, tiles, kBackwardQueries * head_dim]: sums of dQ, in the order in which threads hold them.
  float* grad_q_sums = nullptr;
  /// [batch * heads, tiles, 2]: how many tiles of keys have been added to each orientation of those.
  unsigned* arrivals = nullptr;
  /// Number of the first tile of keys that no block has taken.
  unsigned* next_job = nullptr;
  MatrixView grad_q;
  MatrixView grad_k;
  MatrixView grad_v;
  AttentionRole s;
  AttentionRole grad_p;
};

/// out[rows, cols], contiguous bf16 = the quantized data' values without their scale, exactly. Rows start at multiples
/// of 16 bytes, cols is a multiple of 16.
void widen_data(const MatrixView& data, std::byte* out, CudaContext& gpu);

/// head_dim 64 or 128, all operands' rows at multiples of 16 bytes.
void launch_tensor_forward(const TensorForward& call, CudaContext& gpu);
void launch_tensor_backward(const TensorBackward& call, CudaContext& gpu);

/// Before the products of backward: writes `rows`, and no arrival has been counted.
void prepare_tensor_backward(const TensorBackward& call, CudaContext& gpu);
/// After them: grad_q = grad_q_sums times its factor.
void finish_tensor_backward(const TensorBackward& call, CudaContext& gpu);

}  // namespace fp8lab::cuda

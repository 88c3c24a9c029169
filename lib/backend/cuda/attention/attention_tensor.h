#pragma once

#include "backend/cuda/context.h"
#include "backend/kernels.h"

// Attention on Hopper's matrix units: the arguments that attention_tensor.cpp prepares for the kernels.
namespace fp8lab::cuda {

/// A bf16 operand. FP8 data have been widened to it exactly; products must still be multiplied by their scale.
struct WideOperand {
  const std::byte* data = nullptr;   ///< row of token 0, bf16
  std::int64_t row_stride = 0;       ///< elements from one token to the next, a multiple of 8
  const float* scale_inv = nullptr;  ///< null means 1
};

struct TensorForward {
  AttentionShape shape;
  WideOperand q;
  WideOperand k;
  WideOperand v;
  MatrixView o;
  MatrixView lse;
  AttentionRole s;
  MatrixView sinks;  ///< absent if P is cast
};

inline constexpr std::int64_t kBackwardQueries = 64;

struct TensorBackward {
  AttentionShape shape;
  WideOperand q;
  WideOperand k;
  WideOperand v;
  WideOperand grad_o;
  OperandView o_data;  ///< O as the caller passed it; `rows` is computed from it
  OperandView grad_o_data;
  MatrixView lse;
  // Scratch, in tiles of kBackwardQueries queries of one head of one sequence.
  /// f32 [batch * heads, tiles, 2, kBackwardQueries]: start values of each query's products. First minus its lse in
  /// units of Q K^T (0 if lse is infinite, -inf beyond seq), then minus its sum of dO * O in units of dO V^T.
  float* rows = nullptr;
  /// f32 [batch * heads, tiles, kBackwardQueries * head_dim]: sums of dQ, in the order in which threads hold them.
  float* grad_q_sums = nullptr;
  /// [batch * heads, tiles, 2]: how many tiles of keys have been added to each half of the columns of a tile of
  /// grad_q_sums.
  unsigned* arrivals = nullptr;
  /// Number of the first job (tile of keys) that no block has taken yet.
  unsigned* next_job = nullptr;
  MatrixView grad_q;
  MatrixView grad_k;
  MatrixView grad_v;
  AttentionRole s;
  AttentionRole grad_p;
};

/// out[rows, cols], contiguous bf16 = the values of the quantized data without their scale, exactly. Rows of `data`
/// start at multiples of 16 bytes, and cols is a multiple of 16.
void widen_data(const MatrixView& data, std::byte* out, CudaContext& context);

/// head_dim must be 64 or 128, and the rows of all operands must start at multiples of 16 bytes.
void launch_tensor_forward(const TensorForward& call, CudaContext& context);
void launch_tensor_backward(const TensorBackward& call, CudaContext& context);

/// Runs before the products of backward: computes `rows` and zeroes `arrivals` and `next_job`.
void prepare_tensor_backward(const TensorBackward& call, CudaContext& context);
/// Runs after the products of backward: grad_q = grad_q_sums times its factor.
void finish_tensor_backward(const TensorBackward& call, CudaContext& context);

}  // namespace fp8lab::cuda

#pragma once

#include <string>

#include "backend/cuda/context.h"
#include "backend/kernels.h"

// The attention algorithms of the GPU; attention.cpp picks one for each call by the table of attention_choice.h.
namespace fp8lab::cuda {

/// FP32 on the CUDA cores: every shape, type and stride that backend/kernels.h allows, bit for bit the `cpu` kernel.
void attention_general_forward(const AttentionForwardArgs& args, CudaContext& context);
void attention_general_backward(const AttentionBackwardArgs& args, CudaContext& context);

/// rowsum(dO * O) of every query, f32 on the GPU: for each head of each sequence tiles of `tile` queries, `tile_step`
/// elements apart.
struct QueryDots {
  const float* data = nullptr;
  std::int64_t tile = 1;
  std::int64_t tile_step = 1;
  bool negative = false;  ///< `data` holds minus the sums
};
/// Lets sinks, if there are any, join O and lse that were computed without them. The columns of a value are a multiple
/// of eight, and rows of O hold runs of eight.
void attention_join_sinks(const AttentionForwardArgs& args, CudaContext& context);
/// grad_sinks, if there are sinks; no operand is quantized.
void attention_sink_gradients(const AttentionBackwardArgs& args, const QueryDots& dots, CudaContext& context);

/// Hopper's matrix units (wgmma). Needs head_dim 64 or 128, values as wide as keys, operands in bf16 or FP8, rows and
/// pointers at multiples of 16 bytes, softmax_scale of at least kLeastSoftmaxScale of attention_choice.h, and no sinks
/// if anything is quantized; results have any real type. FP8 operands are widened to bf16 copies in scratch, so every
/// cast equals the `cpu` kernel's. Without casts P and dS are rounded to bf16 before their products.
void attention_tensor_forward(const AttentionForwardArgs& args, CudaContext& context);
void attention_tensor_backward(const AttentionBackwardArgs& args, CudaContext& context);

/// Empty if cuDNN can be called, else why not. Searches for the library once per process.
const std::string& cudnn_unavailable_reason();

// Attention by cuDNN only. Each function returns false, with nothing done, if cuDNN has no plan for the shape,
// types and strides; it queries cuDNN once for each combination of them. P and dS are rounded to the operands' type;
// forward's P is relative to the running maximum of its row, not to lse.

/// Operands and output all bf16 or all f16, no dropout. If this cuDNN or its frontend has no sinks, they join
/// afterwards, so that O is rounded twice.
bool attention_cudnn_forward(const AttentionForwardArgs& args, CudaContext& context);
/// The same for gradients, all in the operands' type and without sinks. If the context is deterministic, cuDNN stores
/// dP of every head in 16 bits, with seq padded to 64. Otherwise blocks add to dQ in the order in which they finish.
bool attention_cudnn_backward(const AttentionBackwardArgs& args, CudaContext& context);
/// E4M3 operands, with `s`, and with the scale of O's coming cast in args.o_cast. O is the value of its eight bits, and
/// its amax is measured. P is cast relative to the running maximum of its row, so its 8-bit data differ from the data
/// in the definition, but are as close to P.
bool attention_cudnn_float8_forward(const AttentionForwardArgs& args, CudaContext& context);
/// The same for gradients: E4M3 q, k, v and O, E5M2 dO, with `s` and `grad_p`, and with the scale of the gradients'
/// coming cast to E5M2 in args.grad_cast; their amax is measured. head_dim 128. Blocks add to dQ in the order in which
/// they finish, so bits may differ between runs.
bool attention_cudnn_float8_backward(const AttentionBackwardArgs& args, CudaContext& context);

}  // namespace fp8lab::cuda

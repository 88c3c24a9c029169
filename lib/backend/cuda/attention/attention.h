#pragma once

#include <string>

#include "backend/cuda/context.h"
#include "backend/kernels.h"

// The GPU's paths to compute attention; attention.cpp picks one for each call, by the table of attention_choice.h.
namespace fp8lab::cuda {

/// FP32 on the ordinary units: every shape, type and stride that backend/kernels.h allows, bit for bit the `cpu`
/// kernel.
void attention_general_forward(const AttentionForwardArgs& args, CudaContext& gpu);
void attention_general_backward(const AttentionBackwardArgs& args, CudaContext& gpu);

/// Hopper's matrix units: head_dim 64 or 128, operands bf16 or FP8, rows and pointers at multiples of 16 bytes,
/// softmax_scale at least kLeastSoftmaxScale of attention_choice.h; results of any real type. FP8 operands are widened
/// to copies in scratch, so that every cast is the `cpu` kernel's; without casts P and dS are rounded to bf16 before
/// their products.
void attention_tensor_forward(const AttentionForwardArgs& args, CudaContext& gpu);
void attention_tensor_backward(const AttentionBackwardArgs& args, CudaContext& gpu);

/// Empty where cuDNN can be called, else why not. Searches for the library once per process.
const std::string& cudnn_unavailable_reason();

// Full calls through cuDNN. False, and nothing done, where cuDNN has no plan for the shape, types and strides, which
// is asked once for each of them. P and dS are rounded to the operands' type; forward's P is relative to the maximum of
// the row so far, not to lse.

/// Operands and output bf16 or f16, one type, no dropout.
bool attention_cudnn_forward(const AttentionForwardArgs& args, CudaContext& gpu);
/// The same for gradients: all in the operands' type. Where the context must be deterministic cuDNN writes dP down: as
/// many bytes as cudnn_backward_workspace() of attention_choice.h says. Else it adds to dQ as blocks come.
bool attention_cudnn_backward(const AttentionBackwardArgs& args, CudaContext& gpu);
/// E4M3 operands, `s` given, the scale of O's coming cast in args.o_cast: O is what its eight bits will say, and its
/// amax is measured. P is cast as it stands, so its data are not the definition's, though as close to P.
bool attention_cudnn_float8_forward(const AttentionForwardArgs& args, CudaContext& gpu);
/// The same for gradients: E4M3 q, k, v and O, E5M2 dO, `s` and `grad_p` given, the scale of the gradients' coming cast
/// to E5M2 in args.grad_cast, their amax measured. head_dim 128. It adds to dQ as blocks come, so bits may differ
/// between runs.
bool attention_cudnn_float8_backward(const AttentionBackwardArgs& args, CudaContext& gpu);

}  // namespace fp8lab::cuda

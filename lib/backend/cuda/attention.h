#pragma once

#include "backend/cuda/context.h"
#include "backend/kernels.h"

// The card's ways to compute attention; attention.cpp picks one for each call.
namespace fp8lab::cuda {

/// FP32 on the ordinary units: every shape, type and stride that backend/kernels.h allows, bit for bit the `cpu` kernel.
void attention_general_forward(const AttentionForwardArgs& args, CudaContext& card);
void attention_general_backward(const AttentionBackwardArgs& args, CudaContext& card);

}  // namespace fp8lab::cuda

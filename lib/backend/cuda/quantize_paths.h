#pragma once

#include "backend/cuda/context.h"
#include "backend/kernels.h"

// The ways that quantize() goes, fastest first: each takes what it says and leaves the rest to the next.
namespace fp8lab::cuda {

/// Takes everything.
void quantize_general(const QuantizeArgs& args, CudaContext& card);

/// Blocks that a rows x cols matrix is cut into along the sides of `scales`.
std::int64_t block_count(const ScaleView& scales, const MatrixView& matrix);

/// Clears the scales of `matrix` if there are more of them than blocks.
void clear_padding(const ScaleView& scales, const MatrixView& matrix, CudaContext& card);

}  // namespace fp8lab::cuda

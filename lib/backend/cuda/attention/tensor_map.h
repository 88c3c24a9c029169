#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/attention/attention_tensor.h"

namespace fp8lab::cuda {

/// The tensor map (TMA descriptor) of an operand [seq * batch, heads * head_dim]. Its boxes are 64 columns of `rows`
/// positions of one sequence, at coordinates (column, sequence, position). They arrive as rows of 128 bytes whose
/// 16-byte units are permuted as device/wgmma.cuh describes (128-byte swizzle). Positions from seq on are zeros.
CUtensorMap head_rows_map(const WideOperand& operand, const AttentionShape& shape, std::int64_t heads, int rows);

}  // namespace fp8lab::cuda

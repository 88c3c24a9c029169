#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/attention/attention_tensor.h"

namespace fp8lab::cuda {

/// What the copy engine needs to know of an operand [seq * batch, heads * head_dim] to provide boxes of 64 columns and
/// `rows` positions of one sequence, at coordinates (column, sequence, position): rows of 128 bytes, whose 16-byte
/// units have changed places as device/wgmma.cuh says. Positions from seq on are zeros.
CUtensorMap head_rows_map(const WideOperand& operand, const AttentionShape& shape, std::int64_t heads, int rows);

}  // namespace fp8lab::cuda

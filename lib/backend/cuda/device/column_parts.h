#pragma once

#include <cstdint>

#include "backend/cuda/context.h"
#include "core/sum_order.h"
#include "tensor/view.h"

namespace fp8lab::cuda {

/// The second step of a sum over columns: adds the f32 [parts, cols] sums of parts of rows in the order of
/// core/sum_order.h and stores the result, rounded, in `out`, [1, cols].
void add_parts(const float* sums, std::int64_t parts, const MatrixView& out, CudaContext& context);

/// Number of parts that `rows` rows are divided into.
inline std::int64_t parts_of(std::int64_t rows) {
  const std::int64_t height = rows_in_part(rows);
  return (rows + height - 1) / height;
}

}  // namespace fp8lab::cuda

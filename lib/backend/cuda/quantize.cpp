#include "backend/cuda/cuda_check.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/quantize_paths.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace fp8lab::cuda {

std::int64_t block_count(const ScaleView& scales, const MatrixView& matrix) {
  return ceil_div(matrix.rows, scales.block_rows) * ceil_div(matrix.cols, scales.block_cols);
}

void clear_padding(const ScaleView& scales, const MatrixView& matrix, CudaContext& card) {
  if (scales.storage_elems <= block_count(scales, matrix)) return;
  const auto bytes = static_cast<std::size_t>(scales.storage_elems) * size_bytes(scales.dtype);
  cuda_check(cudaMemsetAsync(scales.data, 0, bytes, card.stream()), "cudaMemsetAsync");
}

void quantize(const QuantizeArgs& args, ExecContext& context) { quantize_general(args, cuda_context(context)); }

}  // namespace fp8lab::cuda

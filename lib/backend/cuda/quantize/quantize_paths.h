#pragma once

#include "backend/cuda/context.h"
#include "backend/cuda/quantize/device/scale_rule.h"
#include "backend/kernels.h"

// The paths of quantize(): long runs if the order of elements does not matter, tiles if the matrix's rows are
// contiguous, else single elements. All give the same bits.
namespace fp8lab::cuda {

/// Arguments of the tile kernels: a matrix of f32, bf16 or f16 with contiguous rows. Row-wise quantized data are stored
/// along the matrix's rows; column-wise ones along its columns (`columnwise.values.col_stride` 1) or, in blocks of 32,
/// along its rows (`columnwise.values.row_stride` 1).
struct TileTask {
  MatrixView in;
  OperandView rowwise;     ///< absent: values.data null
  OperandView columnwise;  ///< absent: values.data null
  ScaleRule rule{};
  const float* scale = nullptr;
  const float* measured = nullptr;
  float* amax = nullptr;
  bool in_vectors = false;   ///< every eighth element of a row of `in` is aligned to 16 bytes
  bool row_vectors = false;  ///< every eighth element of the row-wise data is aligned to eight bytes
  /// Rows of the column-wise data begin at multiples of this many bytes: 16, 8, or 1 for any.
  int column_alignment = 1;
};

/// One scale for the entire tensor, row-wise only, everything contiguous.
void quantize_run(const TileTask& task, DType dtype, CudaContext& context);
/// One scale for the entire tensor.
void quantize_tensor_tiles(const TileTask& task, DType dtype, CudaContext& context);
/// Blocks of 1 x 128 with scales in f32.
void quantize_strip_tiles(const TileTask& task, DType dtype, CudaContext& context);
/// Blocks of 128 x 128 with scales in f32.
void quantize_square_tiles(const TileTask& task, DType dtype, CudaContext& context);
/// Blocks of 1 x 32 with scales in E8M0.
void quantize_micro_tiles(const TileTask& task, DType dtype, CudaContext& context);
/// Accepts all arguments.
void quantize_general(const QuantizeArgs& args, CudaContext& context);

/// Number of blocks that a matrix is divided into by the block sides of `scales`.
std::int64_t block_count(const ScaleView& scales, const MatrixView& matrix);

/// Zeroes the scales of `matrix` if their storage has padding, that is, more elements than there are blocks.
void clear_padding(const ScaleView& scales, const MatrixView& matrix, CudaContext& context);

}  // namespace fp8lab::cuda

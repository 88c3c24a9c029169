#pragma once

#include "backend/cuda/context.h"
#include "backend/cuda/quantize/device/scale_rule.h"
#include "backend/kernels.h"

// The paths that quantize() goes: by long runs where order does not matter, by tiles where the matrix's rows are
// contiguous, else element by element. Each comes to the same bits.
namespace fp8lab::cuda {

/// What kernels of tiles take: a matrix of f32, bf16 or f16 whose rows are contiguous. Row-wise quantized data lie like
/// the matrix's rows; column-wise ones like its columns (`columnwise.values.col_stride` 1) or, in blocks of 32, like
/// its rows
/// (`columnwise.values.row_stride` 1).
struct TileTask {
  MatrixView in;
  OperandView rowwise;     ///< absent: values.data null
  OperandView columnwise;  ///< absent: values.data null
  ScaleRule rule{};
  const float* scale = nullptr;
  const float* measured = nullptr;
  float* amax = nullptr;
  bool in_vectors = false;   ///< every eighth element of a row of `in` is aligned to 16 bytes
  bool row_vectors = false;  ///< every eighth code of a row-wise row is aligned to eight bytes
  int column_alignment = 1;  ///< bytes that column-wise rows begin at multiples of: 16, 8 or any
};

/// One scale for all, row-wise only, everything contiguous.
void quantize_run(const TileTask& task, DType payload, CudaContext& gpu);
/// One scale for all.
void quantize_tensor_tiles(const TileTask& task, DType payload, CudaContext& gpu);
/// Blocks of 1 x 128 with scales in f32.
void quantize_strip_tiles(const TileTask& task, DType payload, CudaContext& gpu);
/// Blocks of 128 x 128 with scales in f32.
void quantize_square_tiles(const TileTask& task, DType payload, CudaContext& gpu);
/// Blocks of 1 x 32 with scales in E8M0.
void quantize_micro_tiles(const TileTask& task, DType payload, CudaContext& gpu);
/// Takes everything.
void quantize_general(const QuantizeArgs& args, CudaContext& gpu);

/// Blocks that a rows x cols matrix is cut into along the sides of `scales`.
std::int64_t block_count(const ScaleView& scales, const MatrixView& matrix);

/// Clears the scales of `matrix` if there are more of them than blocks.
void clear_padding(const ScaleView& scales, const MatrixView& matrix, CudaContext& gpu);

}  // namespace fp8lab::cuda

#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/quantize/device/scale_rule.h"

// Operations whose result is quantized at once: what their kernels take, and what is left for those that none takes.
namespace fp8lab::cuda {

/// Quantized data, row by row, of a bf16 result that stays in registers.
struct RowCast {
  std::uint8_t* data;
  std::int64_t pitch;
  std::byte* scales;  ///< of blocks
  std::int64_t scale_row_stride;
  std::int64_t scale_col_stride;
  ScaleRule rule;
  const float* scale;   ///< of the entire tensor
  float* scale_inv[2];  ///< where its inverse goes; null: nowhere
  float* amax;
};

/// Whether kernels of rows take the cast of `args` and its result: bf16 in rows of full warps' runs to E4M3, under one
/// scale or in row-wise blocks of 32 under E8M0 scales or 128 under f32 ones.
bool rows_take(const QuantizeArgs& args);

/// For rows_take(): the cast and the preparation it needs.
RowCast begin_row_cast(const QuantizeArgs& args, CudaContext& gpu);
/// After the quantized data were written: the transposed orientation, where it is wanted.
void end_row_cast(const QuantizeArgs& args, const RowCast& cast, CudaContext& gpu);

/// Writes the column-wise orientation of `args`, where it is wanted, from row-wise data under the same scale; `pitch`
/// is between rows.
void transpose_data(const QuantizeArgs& args, std::byte* data, std::int64_t pitch, CudaContext& gpu);

/// For rows_take() and the result's own conditions; false if those do not hold.
bool norm_quantize_rows(const NormQuantizeArgs& args, CudaContext& gpu);
bool activation_quantize_rows(const ActivationQuantizeArgs& args, CudaContext& gpu);
/// False, with nothing written, where the library cannot write the quantized data (plan_gemm_quantize() has what it
/// takes).
bool gemm_quantize_by_library(const GemmQuantizeArgs& args, CudaContext& gpu);

/// Memory for results of shapes that no such kernel takes, so that they must be stored after all. Grows, which waits
/// for the GPU, and stays.
class UnstoredResults {
 public:
  explicit UnstoredResults(CudaContext& gpu) : gpu_(gpu) {}

  /// `result` made contiguous in that memory.
  MatrixView place(const MatrixView& result);

 private:
  CudaContext& gpu_;
  DeviceBytes memory_;
  std::size_t bytes_ = 0;
};

}  // namespace fp8lab::cuda

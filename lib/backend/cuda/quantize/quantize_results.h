#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/quantize/device/scale_rule.h"

// Operations whose result is quantized without being stored: arguments of their kernels, and the fallback for results
// that no such kernel accepts.
namespace fp8lab::cuda {

/// The destination of a bf16 result that stays in registers: its row-wise quantized data and scales.
struct RowCast {
  std::uint8_t* data;
  std::int64_t pitch;
  std::byte* scales;  ///< scales of blocks
  std::int64_t scale_row_stride;
  std::int64_t scale_col_stride;
  ScaleRule rule;
  const float* scale;   ///< scale of the entire tensor
  float* scale_inv[2];  ///< receives the inverse of `scale`; null: not wanted
  float* amax;
};

/// True if the row kernels accept the cast of `args` and its result: bf16, in rows that consist of full warps' runs, to
/// E4M3, under one scale or in row-wise blocks of 32 under E8M0 scales or of 128 under f32 scales.
bool rows_take(const QuantizeArgs& args);

/// For casts that rows_take() accepts: prepares the cast and returns its arguments.
RowCast begin_row_cast(const QuantizeArgs& args, CudaContext& context);
/// After the row-wise data were written: writes the column-wise orientation if it is wanted.
void end_row_cast(const QuantizeArgs& args, const RowCast& cast, CudaContext& context);

/// Writes the column-wise orientation of `args`, if it is wanted, from row-wise data under the same scale, whose rows
/// start `pitch` elements apart.
void transpose_data(const QuantizeArgs& args, std::byte* data, std::int64_t pitch, CudaContext& context);

/// For casts that rows_take() accepts; false, with nothing written, if the operation's own conditions do not hold.
bool norm_quantize_rows(const NormQuantizeArgs& args, CudaContext& context);
bool activation_quantize_rows(const ActivationQuantizeArgs& args, CudaContext& context);
/// Returns false, with nothing written, if the library cannot write the quantized data (conditions:
/// plan_gemm_quantize()).
bool gemm_quantize_by_library(const GemmQuantizeArgs& args, CudaContext& context);

/// Memory for results that no such kernel accepts and that must therefore be stored. The buffer grows as needed, which
/// waits for the GPU, and is kept.
class UnstoredResults {
 public:
  explicit UnstoredResults(CudaContext& context) : context_(context) {}

  /// `result` as a contiguous matrix in that memory.
  MatrixView place(const MatrixView& result);

 private:
  CudaContext& context_;
  DeviceBytes memory_;
  std::size_t bytes_ = 0;
};

}  // namespace fp8lab::cuda

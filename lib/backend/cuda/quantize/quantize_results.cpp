#include "backend/cuda/quantize/quantize_results.h"

#include "backend/cuda/kernels.h"
#include "backend/cuda/quantize/quantize_paths.h"

namespace fp8lab::cuda {
namespace {

constexpr std::int64_t kWarpCols = 256;  // runs of eight elements in 32 lanes

bool rows_hold_data(const MatrixView& data) {
  return data.col_stride == 1 && data.row_stride % 16 == 0 && reinterpret_cast<std::uintptr_t>(data.data) % 16 == 0;
}

bool rows_know_blocks(const QuantFormat& format) {
  if (format.per_tensor()) return true;
  const bool bytes = format.scale_dtype() == DType::kE8M0;
  return format.block_rows == 1 && format.block_cols == (bytes ? 32 : 128);
}

}  // namespace

bool rows_take(const QuantizeArgs& args) {
  const MatrixView& columnwise = args.columnwise.values;
  return args.in.dtype == DType::kBF16 && args.in.numel() > 0 && args.in.cols % kWarpCols == 0 &&
         args.format.dtype == DType::kE4M3 && rows_know_blocks(args.format) &&
         (args.rowwise.values.data == nullptr || rows_hold_data(args.rowwise.values)) &&
         (columnwise.data == nullptr || (args.format.per_tensor() && columnwise.col_stride == 1));
}

RowCast begin_row_cast(const QuantizeArgs& args, CudaContext& context) {
  const MatrixView& rowwise = args.rowwise.values;
  const ScaleView& scales = args.rowwise.scales;
  const bool per_tensor = args.format.per_tensor();
  const bool stored = rowwise.data != nullptr;
  if (!per_tensor) clear_padding(scales, args.in, context);
  // Without a row-wise orientation the row-wise data are only an intermediate step to the transpose, in scratch.
  std::byte* const data = stored ? rowwise.data : context.scratch(static_cast<std::size_t>(args.in.numel()));
  const auto inverse_of = [&](const OperandView& orientation) {
    return per_tensor && orientation.values.data != nullptr ? reinterpret_cast<float*>(orientation.scales.data)
                                                            : nullptr;
  };
  return {.data = reinterpret_cast<std::uint8_t*>(data),
          .pitch = stored ? rowwise.row_stride : args.in.cols,
          .scales = scales.data,
          .scale_row_stride = scales.row_stride,
          .scale_col_stride = scales.col_stride,
          .rule = scale_rule(args.format, args.in.dtype),
          .scale = args.scale,
          .scale_inv = {inverse_of(args.rowwise), inverse_of(args.columnwise)},
          .amax = per_tensor ? args.amax : nullptr};
}

void end_row_cast(const QuantizeArgs& args, const RowCast& cast, CudaContext& context) {
  transpose_data(args, reinterpret_cast<std::byte*>(cast.data), cast.pitch, context);
}

void transpose_data(const QuantizeArgs& args, std::byte* data, std::int64_t pitch, CudaContext& context) {
  if (args.columnwise.values.data == nullptr) return;
  const MatrixView transposed{.data = data,
                              .dtype = args.columnwise.values.dtype,
                              .rows = args.in.cols,
                              .cols = args.in.rows,
                              .row_stride = 1,
                              .col_stride = pitch};
  cast({.in = transposed, .out = args.columnwise.values}, context);
}

MatrixView UnstoredResults::place(const MatrixView& result) {
  const std::size_t bytes = static_cast<std::size_t>(result.numel()) * size_bytes(result.dtype);
  if (bytes > bytes_) {
    context_.synchronize();
    memory_.reset();
    bytes_ = 0;
    memory_ = context_.allocate(bytes);
    bytes_ = bytes;
  }
  MatrixView placed = result;
  placed.data = memory_.get();
  placed.row_stride = placed.cols;
  placed.col_stride = 1;
  return placed;
}

void norm_quantize(const NormQuantizeArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  if (rows_take(args.cast) && norm_quantize_rows(args, gpu)) return;
  NormForwardArgs norm = args.norm;
  QuantizeArgs cast = args.cast;
  norm.y = cast.in = gpu.kept<UnstoredResults>().place(norm.y);
  norm_forward(norm, context);
  quantize(cast, context);
}

void activation_quantize(const ActivationQuantizeArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  if (rows_take(args.cast) && activation_quantize_rows(args, gpu)) return;
  ActivationForwardArgs activation = args.activation;
  QuantizeArgs cast = args.cast;
  activation.y = cast.in = gpu.kept<UnstoredResults>().place(activation.y);
  activation_forward(activation, context);
  quantize(cast, context);
}

void gemm_quantize(const GemmQuantizeArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  if (gemm_quantize_by_library(args, gpu)) return;
  GemmArgs product = args.product;
  QuantizeArgs cast = args.cast;
  product.out = cast.in = gpu.kept<UnstoredResults>().place(product.out);
  gemm(product, context);
  quantize(cast, context);
}

}  // namespace fp8lab::cuda

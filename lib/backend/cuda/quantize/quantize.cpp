#include <cstdint>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/quantize/quantize_paths.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace fp8lab::cuda {
namespace {

bool contiguous_rows(const MatrixView& matrix) { return matrix.col_stride == 1; }

/// True if rows and every `elems`-th element of them are aligned to `elems` elements, or to 16 bytes if that is less.
bool aligned(const MatrixView& matrix, std::int64_t elems) {
  const auto bytes = static_cast<std::uintptr_t>(elems) * size_bytes(matrix.dtype);
  const std::uintptr_t wanted = bytes < 16 ? bytes : 16;
  const std::int64_t pitch = matrix.row_stride * static_cast<std::int64_t>(size_bytes(matrix.dtype));
  return reinterpret_cast<std::uintptr_t>(matrix.data) % wanted == 0 && pitch % static_cast<std::int64_t>(wanted) == 0;
}

enum class Blocks { kTensor, kStrips, kSquares, kMicro, kOther };

Blocks blocks_of(const QuantFormat& format) {
  if (format.per_tensor()) return Blocks::kTensor;
  const bool bytes = format.scale_dtype() == DType::kE8M0;
  if (format.block_rows == 1 && format.block_cols == 128 && !bytes) return Blocks::kStrips;
  if (format.block_rows == 128 && format.block_cols == 128 && !bytes) return Blocks::kSquares;
  if (format.block_rows == 1 && format.block_cols == 32 && bytes) return Blocks::kMicro;
  return Blocks::kOther;
}

/// True if the tile kernels accept `args`; fills in `task` then.
bool tiles_take(const QuantizeArgs& args, Blocks blocks, TileTask& task) {
  // The number of tiles is not checked: a matrix of more tiles than a grid has blocks fits no GPU.
  if (blocks == Blocks::kOther || args.in.numel() == 0 || !contiguous_rows(args.in)) return false;
  const MatrixView &rowwise = args.rowwise.values, &columnwise = args.columnwise.values;
  const bool want_rowwise = rowwise.data != nullptr, want_columnwise = columnwise.data != nullptr;
  // Microscaling stores the column-wise data along the matrix's rows, with scales to match.
  const bool along_rows = blocks == Blocks::kMicro;
  const MatrixView stored = along_rows ? columnwise.transposed() : columnwise;
  if (want_rowwise && !contiguous_rows(rowwise)) return false;
  if (want_columnwise && !contiguous_rows(stored)) return false;
  if (want_columnwise && along_rows && args.columnwise.scales.row_stride != 1) return false;
  task = {.in = args.in,
          .rowwise = args.rowwise,
          .columnwise = args.columnwise,
          .rule = scale_rule(args.format, args.in.dtype),
          .scale = args.scale,
          .measured = args.measured,
          .amax = args.amax,
          .in_vectors = aligned(args.in, 8),
          .row_vectors = want_rowwise && aligned(rowwise, 8),
          .column_alignment = !want_columnwise || !aligned(stored, 8) ? 1
                              : aligned(stored, 16)                   ? 16
                                                                      : 8};
  return true;
}

/// The same work on the transposed matrix: the two orientations are exchanged.
QuantizeArgs transposed(const QuantizeArgs& args) {
  QuantizeArgs other = args;
  other.in = args.in.transposed();
  other.rowwise = args.columnwise;
  other.columnwise = args.rowwise;
  return other;
}

bool is_run(const TileTask& task) {
  return task.columnwise.values.data == nullptr && task.in.contiguous() && task.rowwise.values.contiguous() &&
         reinterpret_cast<std::uintptr_t>(task.in.data) % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(task.rowwise.values.data) % 8 == 0;
}

void quantize_tiles(const TileTask& task, const QuantFormat& format, Blocks blocks, CudaContext& context) {
  if (!format.per_tensor()) {
    if (task.rowwise.values.data != nullptr) clear_padding(task.rowwise.scales, task.in, context);
    if (task.columnwise.values.data != nullptr) clear_padding(task.columnwise.scales, task.in.transposed(), context);
  }
  switch (blocks) {
    case Blocks::kStrips: return quantize_strip_tiles(task, format.dtype, context);
    case Blocks::kSquares: return quantize_square_tiles(task, format.dtype, context);
    case Blocks::kMicro: return quantize_micro_tiles(task, format.dtype, context);
    default: break;
  }
  return is_run(task) ? quantize_run(task, format.dtype, context) : quantize_tensor_tiles(task, format.dtype, context);
}

}  // namespace

std::int64_t block_count(const ScaleView& scales, const MatrixView& matrix) {
  return ceil_div(matrix.rows, scales.block_rows) * ceil_div(matrix.cols, scales.block_cols);
}

void clear_padding(const ScaleView& scales, const MatrixView& matrix, CudaContext& context) {
  if (scales.storage_elems <= block_count(scales, matrix)) return;
  const auto bytes = static_cast<std::size_t>(scales.storage_elems) * size_bytes(scales.dtype);
  cuda_check(cudaMemsetAsync(scales.data, 0, bytes, context.stream()), "cudaMemsetAsync");
}

void quantize(const QuantizeArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  const Blocks blocks = blocks_of(args.format);
  TileTask task;
  if (tiles_take(args, blocks, task) || tiles_take(transposed(args), blocks, task))
    quantize_tiles(task, args.format, blocks, gpu);
  else
    quantize_general(args, gpu);
}

}  // namespace fp8lab::cuda

#include <utility>

#include "backend/cpu/gemm/matmul.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/rows.h"
#include "core/e8m0.h"

namespace fp8lab::cpu {
namespace {

constexpr int kSlotA = 0;
constexpr int kSlotB = 1;
constexpr int kSlotProduct = 2;
constexpr int kSlotBias = 3;
constexpr int kSlotOut = 4;

/// An operand as floats, in place or in a slot of scratch, and the factor that its products must still be multiplied
/// by.
struct Prepared {
  MatmulOperand operand;
  double factor = 1.0;
};

ScaleView transposed(ScaleView scales) {
  std::swap(scales.block_rows, scales.block_cols);
  std::swap(scales.row_stride, scales.col_stride);
  return scales;
}

float scale_at(const ScaleView& scales, std::int64_t block_row, std::int64_t block_col) {
  const std::int64_t index = block_row * scales.row_stride + block_col * scales.col_stride;
  if (scales.dtype == DType::kE8M0) return e8m0_to_f32(reinterpret_cast<const std::uint8_t*>(scales.data)[index]);
  return reinterpret_cast<const float*>(scales.data)[index];
}

void apply_block_scales(const ScaleView& scales, std::int64_t row, std::int64_t cols, float* values) {
  const std::int64_t block_row = row / scales.block_rows;
  if (scales.block_cols == 1) {
    for (std::int64_t j = 0; j < cols; ++j) values[j] *= scale_at(scales, block_row, j);
    return;
  }
  for (std::int64_t begin = 0; begin < cols; begin += scales.block_cols) {
    const float scale = scale_at(scales, block_row, begin / scales.block_cols);
    const std::int64_t end = begin + scales.block_cols < cols ? begin + scales.block_cols : cols;
    for (std::int64_t j = begin; j < end; ++j) values[j] *= scale;
  }
}

bool readable_in_place(const MatrixView& values) {
  return values.dtype == DType::kF32 && values.col_stride == 1 && values.row_stride >= values.cols && values.cols > 0;
}

// Keeps the stored order, so that the conversion reads memory in sequence; matmul() packs operands of either order.
Prepared prepare(const OperandView& operand, int slot) {
  MatrixView values = operand.values;
  ScaleView scales = operand.scales;
  const bool transpose = values.col_stride != 1 && values.row_stride == 1;
  if (transpose) {
    values = values.transposed();
    scales = transposed(scales);
  }
  if (!operand.quantized() && readable_in_place(values))
    return {.operand = {values.as<const float>(), values.row_stride, transpose}};

  float* floats = scratch(slot, values.numel());
  const bool blocks = operand.quantized() && !operand.scales.per_tensor();
  for (std::int64_t i = 0; i < values.rows; ++i) {
    float* row = floats + i * values.cols;
    load(values, i, 0, values.cols, row);
    if (blocks) apply_block_scales(scales, i, values.cols, row);
  }
  const bool per_tensor = operand.quantized() && operand.scales.per_tensor();
  return {.operand = {floats, values.cols, transpose}, .factor = per_tensor ? double{scale_at(scales, 0, 0)} : 1.0};
}

/// Hopper's tensor cores multiply data that is scaled by FP32 numbers, per tensor or in blocks of 128 along k. Blocks
/// are summed here as dequantized values, which loses nothing if their scales are powers of two.
Sums sums_of(const GemmArgs& args, const ExecContext& context) {
  const auto on_tensor_core = [](const OperandView& operand) {
    return operand.quantized() && operand.scales.dtype == DType::kF32;
  };
  if (!context.tensor_core_sums() || !on_tensor_core(args.a) || !on_tensor_core(args.b)) return Sums::kF32;
  const bool per_tensor = args.a.scales.per_tensor() && args.b.scales.per_tensor();
  return args.fast_accumulation && per_tensor ? Sums::kFastTensorCore : Sums::kTensorCore;
}

}  // namespace

void gemm(const GemmArgs& args, ExecContext& context) {
  const std::int64_t m = args.out.rows;
  const std::int64_t n = args.out.cols;
  const std::int64_t k = args.a.values.cols;
  if (m == 0 || n == 0) return;

  const Prepared a = prepare(args.a, kSlotA);
  const Prepared b = prepare(args.b, kSlotB);
  const double factor = a.factor * b.factor;
  float* product = scratch(kSlotProduct, m * n);
  matmul({.m = m,
          .n = n,
          .k = k,
          .a = a.operand,
          .b = b.operand,
          .c = product,
          .c_row_stride = n,
          .sums = sums_of(args, context)});

  const float* bias = args.bias.data == nullptr ? nullptr : RowReader(args.bias, kSlotBias)(0);
  float* before = args.accumulate ? scratch(kSlotOut, n) : nullptr;
  for (std::int64_t i = 0; i < m; ++i) {
    float* row = product + i * n;
    if (factor != 1.0)
      for (std::int64_t j = 0; j < n; ++j) row[j] = static_cast<float>(double{row[j]} * factor);
    if (bias != nullptr)
      for (std::int64_t j = 0; j < n; ++j) row[j] += bias[j];
    if (before != nullptr) {
      load(args.out, i, 0, n, before);
      for (std::int64_t j = 0; j < n; ++j) row[j] += before[j];
    }
    store(row, n, args.out, i, 0);
  }
}

}  // namespace fp8lab::cpu

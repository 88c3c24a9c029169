#include <algorithm>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/matrix.cuh"
#include "backend/cuda/kernels.h"
#include "core/float8.h"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float scale_at(const ScaleView& scales, std::int64_t row, std::int64_t col) {
  const std::int64_t index =
      scales.block_cols == 0 ? 0 : row / scales.block_rows * scales.row_stride + col / scales.block_cols * scales.col_stride;
  if (scales.dtype == DType::kE8M0) return e8m0_to_f32(reinterpret_cast<const std::uint8_t*>(scales.data)[index]);
  return reinterpret_cast<const float*>(scales.data)[index];
}

/// code * scale, whose NaN is the one that x86 gives: an operand's own, or, of infinity times zero, the negative one.
__device__ float decoded(float code, float scale) {
  const float product = code * scale;
  if (product == product) return product;
  const float cause = code != code ? code : scale;
  return float_from_bits(cause != cause ? float_bits(cause) | kFloatQuietNanBits : 0xFFC00000u);
}

__global__ void dequantize_any_kernel(OperandView in, MatrixView out) {
  const std::int64_t count = out.rows * out.cols;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / out.cols, col = i % out.cols;
    store_element(out, row, col, decoded(load_element(in.values, row, col), scale_at(in.scales, row, col)));
  }
}

}  // namespace

void dequantize(const DequantizeArgs& args, ExecContext& context) {
  if (args.out.numel() == 0) return;
  const CudaContext& card = cuda_context(context);
  constexpr std::int64_t kMostBlocks = 16384;
  const std::int64_t blocks = std::min((args.out.numel() + kThreads - 1) / kThreads, kMostBlocks);
  dequantize_any_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, card.stream()>>>(args.in, args.out);
  cuda_check_launch("dequantize_any_kernel");
}

}  // namespace fp8lab::cuda

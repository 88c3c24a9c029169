#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/magnitudes.cuh"
#include "backend/cuda/device/matrix.cuh"
#include "backend/cuda/quantize/device/block_scale.cuh"
#include "backend/cuda/quantize/quantize_paths.h"

// Every type, stride and block, one element at a time: for matrices that the tile kernels do not accept.
namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void quantize_tensor_kernel(QuantizeArgs args, ScaleRule rule) {
  __shared__ std::uint32_t words[kThreads / 32];
  const float scale = tensor_scale(args.scale, args.measured, rule);
  const MatrixView& in = args.in;
  const bool rowwise = args.rowwise.values.data != nullptr;
  const bool columnwise = args.columnwise.values.data != nullptr;
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    const float inverse = inverse_scale(scale);
    if (rowwise) *reinterpret_cast<float*>(args.rowwise.scales.data) = inverse;
    if (columnwise) *reinterpret_cast<float*>(args.columnwise.scales.data) = inverse;
  }
  std::uint32_t largest = 0;
  const std::int64_t count = in.rows * in.cols;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / in.cols, col = i % in.cols;
    const float x = load_element(in, row, col);
    largest = max(largest, magnitude(x));
    if (rowwise) store_element(args.rowwise.values, row, col, x * scale);
    if (columnwise) store_element(args.columnwise.values, col, row, x * scale);
  }
  if (args.amax == nullptr) return;
  largest = block_max(largest, words);
  if (threadIdx.x == 0) raise_amax(args.amax, largest);
}

/// One orientation; `in` is the matrix or, for the column-wise orientation, its transpose.
struct BlockTask {
  MatrixView in;
  OperandView out;
  std::int64_t blocks;
  ScaleRule rule;
};

/// One warp casts one block of elements.
__global__ void quantize_blocks_kernel(BlockTask task) {
  const std::int64_t block = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (block >= task.blocks) return;
  const MatrixView& in = task.in;
  const ScaleView& scales = task.out.scales;
  const std::int64_t across = (in.cols + scales.block_cols - 1) / scales.block_cols;
  const std::int64_t block_row = block / across, block_col = block % across;
  const std::int64_t row = block_row * scales.block_rows, col = block_col * scales.block_cols;
  const std::int64_t rows = min(scales.block_rows, in.rows - row), cols = min(scales.block_cols, in.cols - col);
  const unsigned lane = threadIdx.x % 32;

  std::uint32_t largest = 0;
  for (std::int64_t i = lane; i < rows * cols; i += 32)
    largest = max(largest, magnitude(load_element(in, row + i / cols, col + i % cols)));
  largest = warp_max(largest);

  const std::int64_t at = block_row * scales.row_stride + block_col * scales.col_stride;
  float scale;
  if (scales.dtype == DType::kE8M0) {
    const std::uint8_t byte = e8m0_scale(task.rule, largest);
    scale = e8m0_multiplier(byte);
    if (lane == 0) reinterpret_cast<std::uint8_t*>(scales.data)[at] = byte;
  } else {
    scale = float_scale(task.rule, largest);
    if (lane == 0) reinterpret_cast<float*>(scales.data)[at] = inverse_scale(scale);
  }
  for (std::int64_t i = lane; i < rows * cols; i += 32) {
    const std::int64_t r = row + i / cols, c = col + i % cols;
    store_element(task.out.values, r, c, load_element(in, r, c) * scale);
  }
}

void quantize_blocks(const MatrixView& in, const OperandView& out, const QuantFormat& format, CudaContext& context) {
  clear_padding(out.scales, in, context);
  const std::int64_t blocks = block_count(out.scales, in);
  if (blocks == 0) return;
  constexpr std::int64_t kWarps = kThreads / 32;
  const auto grid = static_cast<unsigned>((blocks + kWarps - 1) / kWarps);
  quantize_blocks_kernel<<<grid, kThreads, 0, context.stream()>>>({in, out, blocks, scale_rule(format, in.dtype)});
  cuda_check_launch("quantize_blocks_kernel");
}

}  // namespace

void quantize_general(const QuantizeArgs& args, CudaContext& context) {
  if (args.format.per_tensor()) {
    constexpr std::int64_t kMostBlocks = 16384;
    const std::int64_t blocks = std::clamp<std::int64_t>((args.in.numel() + kThreads - 1) / kThreads, 1, kMostBlocks);
    quantize_tensor_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, context.stream()>>>(
        args, scale_rule(args.format, args.in.dtype));
    cuda_check_launch("quantize_tensor_kernel");
    return;
  }
  if (args.rowwise.values.data != nullptr) quantize_blocks(args.in, args.rowwise, args.format, context);
  if (args.columnwise.values.data != nullptr)
    quantize_blocks(args.in.transposed(), args.columnwise, args.format, context);
}

}  // namespace fp8lab::cuda

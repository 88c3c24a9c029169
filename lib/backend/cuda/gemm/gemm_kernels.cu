#include <cuda_bf16.h>

#include <algorithm>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/magnitudes.cuh"
#include "backend/cuda/device/matrix.cuh"
#include "backend/cuda/gemm/gemm_kernels.h"
#include "backend/cuda/quantize/device/block_scale.cuh"
#include "core/e8m0.h"

namespace fp8lab::cuda {
namespace {

constexpr int kTile = 64;   // rows and columns of the result per block
constexpr int kDepth = 16;  // elements of the reduction per step
constexpr int kThreads = 256;
constexpr int kSide = 16;  // threads along one side of a tile
constexpr int kEach = kTile / kSide;
// Length of a row of a tile in shared memory: padded against bank conflicts, and a multiple of 16 bytes.
constexpr int kPitch = kTile + 4;

template <class T>
__device__ T element(const std::byte* data, std::int64_t at) {
  return reinterpret_cast<const T*>(data)[at];
}

__device__ float scale_at(const ScaleView& scales, std::int64_t block_row, std::int64_t block_col) {
  const std::int64_t at = block_row * scales.row_stride + block_col * scales.col_stride;
  return scales.dtype == DType::kE8M0 ? e8m0_to_f32(element<std::uint8_t>(scales.data, at))
                                      : element<float>(scales.data, at);
}

__device__ bool per_tensor(const ScaleView& scales) { return scales.block_cols == 0; }

/// An operand's element as it enters the sum: unscaled under a per-tensor scale, else multiplied by its block's scale.
__device__ float term(const OperandView& operand, std::int64_t i, std::int64_t j) {
  const float value = load_element(operand.values, i, j);
  const ScaleView& scales = operand.scales;
  if (scales.data == nullptr || per_tensor(scales)) return value;
  return value * scale_at(scales, i / scales.block_rows, j / scales.block_cols);
}

__device__ double tensor_scale(const OperandView& operand) {
  const bool scaled = operand.scales.data != nullptr && per_tensor(operand.scales);
  return scaled ? static_cast<double>(scale_at(operand.scales, 0, 0)) : 1.0;
}

__device__ void finish(const MatrixView& out, const MatrixView& bias, bool accumulate, std::int64_t i, std::int64_t j,
                       float sum) {
  if (bias.data != nullptr) sum += load_element(bias, 0, j);
  if (accumulate) sum += load_element(out, i, j);
  store_element(out, i, j, sum);
}

/// Loads one tile of an operand; zero beyond its end. Neighbouring threads read neighbouring memory.
__device__ void load_tile(const OperandView& operand, std::int64_t row, std::int64_t depth,
                          float (&tile)[kDepth][kPitch]) {
  const bool along_rows = operand.values.row_stride == 1;
  for (int part = 0; part < kTile * kDepth / kThreads; ++part) {
    const int at = part * kThreads + static_cast<int>(threadIdx.x);
    const int i = along_rows ? at % kTile : at / kDepth;
    const int l = along_rows ? at / kTile : at % kDepth;
    const bool inside = row + i < operand.values.rows && depth + l < operand.values.cols;
    tile[l][i] = inside ? term(operand, row + i, depth + l) : 0.0f;
  }
}

__global__ void __launch_bounds__(kThreads)
    gemm_general_kernel(const __grid_constant__ GemmArgs args, std::int64_t tiles_n) {
  __shared__ __align__(16) float tile_a[kDepth][kPitch];
  __shared__ __align__(16) float tile_b[kDepth][kPitch];
  const std::int64_t row = blockIdx.x / tiles_n * kTile;
  const std::int64_t col = blockIdx.x % tiles_n * kTile;
  const int own_row = static_cast<int>(threadIdx.x) / kSide * kEach;
  const int own_col = static_cast<int>(threadIdx.x) % kSide * kEach;

  float sums[kEach][kEach] = {};
  for (std::int64_t depth = 0; depth < args.a.values.cols; depth += kDepth) {
    load_tile(args.a, row, depth, tile_a);
    load_tile(args.b, col, depth, tile_b);
    __syncthreads();
#pragma unroll
    for (int l = 0; l < kDepth; ++l) {
      const float4 a = *reinterpret_cast<const float4*>(&tile_a[l][own_row]);
      const float4 b = *reinterpret_cast<const float4*>(&tile_b[l][own_col]);
      const float as[kEach] = {a.x, a.y, a.z, a.w};
      const float bs[kEach] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[i][j] = __fmaf_rn(as[i], bs[j], sums[i][j]);
    }
    __syncthreads();
  }

  const double factor = tensor_scale(args.a) * tensor_scale(args.b);
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (row + own_row + i >= args.out.rows || col + own_col + j >= args.out.cols) continue;
      const float sum = factor == 1.0 ? sums[i][j] : static_cast<float>(static_cast<double>(sums[i][j]) * factor);
      finish(args.out, args.bias, args.accumulate, row + own_row + i, col + own_col + j, sum);
    }
}

__global__ void gemm_finish_kernel(const __grid_constant__ GemmFinishArgs args) {
  const std::int64_t j = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (j >= args.out.cols) return;
  for (std::int64_t i = blockIdx.y; i < args.out.rows; i += gridDim.y)
    finish(args.out, args.bias, args.accumulate, i, j,
           element<float>(args.product.data, i * args.product.row_stride + j));
}

/// Bytes of 0xFF for quantized data (of either format) that are NaN: the GPU's conversion, like encode(), maps each NaN
/// to one code.
__device__ std::uint32_t nan_bytes(std::uint32_t data) { return __vcmpeq4(data, kFloat8Nan * 0x01010101u); }

__global__ void __launch_bounds__(kThreads) quantize_finish_kernel(const __grid_constant__ QuantizeFinishArgs args) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    for (float* const scale_inv : args.scale_inv)
      if (scale_inv != nullptr) *scale_inv = inverse_scale(*args.scale);
    if (args.amax != nullptr) raise_amax(args.amax, min(magnitude(*args.seen), kFloatInfinityBits));
  }
  if (args.amax == nullptr || magnitude(*args.seen) <= kFloatInfinityBits) return;
  constexpr int kPieces = 4;  // 16-byte loads in flight per thread
  const MatrixView& data = args.data;
  const auto per_row = static_cast<std::uint32_t>(data.cols / 16);
  const std::int64_t count = data.rows * per_row, threads = std::int64_t{gridDim.x} * kThreads;
  std::uint32_t found = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; first < count;
       first += threads * kPieces) {
    uint4 pieces[kPieces] = {};
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      const std::int64_t at = first + p * threads;
      if (at >= count) continue;
      const std::int64_t row = data.rows == 1 ? 0 : at / per_row;
      pieces[p] = *reinterpret_cast<const uint4*>(data.data + row * data.row_stride + (at - row * per_row) * 16);
    }
#pragma unroll
    for (const uint4& piece : pieces)
      found |= nan_bytes(piece.x) | nan_bytes(piece.y) | nan_bytes(piece.z) | nan_bytes(piece.w);
  }
  if (__syncthreads_or(found != 0) && threadIdx.x == 0) raise_amax(args.amax, kFloatQuietNanBits);
}

/// Elements per thread: 16 bytes of BF16, so that a warp writes without gaps.
constexpr int kRun = 8;

/// Processes operands in stored order; `out` is row-major. `Full`: rows are runs of kRun elements that begin at
/// multiples of kRun bytes, and each run has one scale or kRun contiguous ones.
template <bool Full>
__global__ void dequantize_to_bf16_kernel(const __grid_constant__ OperandView in,
                                          const __grid_constant__ MatrixView out) {
  const std::int64_t first = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kRun;
  if (first >= out.cols) return;
  for (std::int64_t i = blockIdx.y; i < out.rows; i += gridDim.y) {
    __nv_bfloat16* const to = reinterpret_cast<__nv_bfloat16*>(out.data) + i * out.row_stride + first;
    if constexpr (Full) {
      const std::byte* const scales = in.scales.data + i / in.scales.block_rows * in.scales.row_stride;
      const bool one_scale = in.scales.block_cols != 1;
      const uint2 data = *reinterpret_cast<const uint2*>(in.values.data + i * in.values.row_stride + first);
      const uint2 each = one_scale ? uint2{} : *reinterpret_cast<const uint2*>(scales + first);
      const std::uint8_t common =
          one_scale ? element<std::uint8_t>(scales, first / in.scales.block_cols * in.scales.col_stride)
                    : std::uint8_t{0};
      std::uint32_t made[kRun / 2];
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const auto code = static_cast<std::uint8_t>((j < 4 ? data.x : data.y) >> 8 * (j % 4));
        const auto scale = one_scale ? common : static_cast<std::uint8_t>((j < 4 ? each.x : each.y) >> 8 * (j % 4));
        const float value = in.values.dtype == DType::kE4M3 ? e4m3_to_f32(code) : e5m2_to_f32(code);
        const std::uint32_t bits = __bfloat16_as_ushort(__float2bfloat16_rn(value * e8m0_to_f32(scale)));
        made[j / 2] = j % 2 == 0 ? bits : made[j / 2] | bits << 16;
      }
      *reinterpret_cast<uint4*>(to) = {made[0], made[1], made[2], made[3]};
    } else {
      for (int j = 0; j < kRun && first + j < out.cols; ++j) to[j] = __float2bfloat16_rn(term(in, i, first + j));
    }
  }
}

OperandView transposed(const OperandView& operand) {
  OperandView result = operand;
  result.values = operand.values.transposed();
  result.scales.block_rows = operand.scales.block_cols;
  result.scales.block_cols = operand.scales.block_rows;
  result.scales.row_stride = operand.scales.col_stride;
  result.scales.col_stride = operand.scales.row_stride;
  return result;
}

bool at_runs(const std::byte* data, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(data) % kRun == 0 && stride % kRun == 0;
}

bool in_full_runs(const OperandView& operand) {
  const ScaleView& scales = operand.scales;
  const bool one_scale = scales.block_cols % kRun == 0;
  const bool a_scale_each = scales.block_cols == 1 && scales.col_stride == 1 && at_runs(scales.data, scales.row_stride);
  return operand.values.col_stride == 1 && operand.values.cols % kRun == 0 &&
         at_runs(operand.values.data, operand.values.row_stride) && (one_scale || a_scale_each);
}

dim3 rows_of_runs(std::int64_t rows, std::int64_t runs, int threads) {
  constexpr std::int64_t kMaxRows = 65535;
  return dim3(static_cast<unsigned>((runs + threads - 1) / threads),
              static_cast<unsigned>(rows < kMaxRows ? rows : kMaxRows));
}

}  // namespace

void gemm_general(const GemmArgs& args, CudaContext& context) {
  const std::int64_t tiles_m = (args.out.rows + kTile - 1) / kTile;
  const std::int64_t tiles_n = (args.out.cols + kTile - 1) / kTile;
  gemm_general_kernel<<<static_cast<unsigned>(tiles_m * tiles_n), kThreads, 0, context.stream()>>>(args, tiles_n);
  cuda_check_launch("gemm_general_kernel");
}

void gemm_finish(const GemmFinishArgs& args, CudaContext& context) {
  gemm_finish_kernel<<<rows_of_runs(args.out.rows, args.out.cols, kThreads), kThreads, 0, context.stream()>>>(args);
  cuda_check_launch("gemm_finish_kernel");
}

void quantize_finish(const QuantizeFinishArgs& args, CudaContext& context) {
  QuantizeFinishArgs one_row = args;
  MatrixView& data = one_row.data;
  if (data.contiguous()) {
    data.cols = data.numel();
    data.rows = 1;
  }
  constexpr std::int64_t kEach = 4 * 16 * kThreads;
  const std::int64_t most = context.multiprocessors();  // one block per multiprocessor; they usually find nothing to do
  const std::int64_t blocks = args.amax == nullptr ? 1 : std::min((data.numel() + kEach - 1) / kEach, most);
  quantize_finish_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, context.stream()>>>(one_row);
  cuda_check_launch("quantize_finish_kernel");
}

void dequantize_to_bf16(const OperandView& operand, const MatrixView& out, CudaContext& context) {
  const bool transpose = out.col_stride != 1;
  const OperandView in = transpose ? transposed(operand) : operand;
  const MatrixView stored = transpose ? out.transposed() : out;
  constexpr int kRunThreads = 256;
  const dim3 grid = rows_of_runs(stored.rows, (stored.cols + kRun - 1) / kRun, kRunThreads);
  if (in_full_runs(in))
    dequantize_to_bf16_kernel<true><<<grid, kRunThreads, 0, context.stream()>>>(in, stored);
  else
    dequantize_to_bf16_kernel<false><<<grid, kRunThreads, 0, context.stream()>>>(in, stored);
  cuda_check_launch("dequantize_to_bf16_kernel");
}

}  // namespace fp8lab::cuda

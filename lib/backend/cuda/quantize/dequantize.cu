#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <utility>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/conversions.cuh"
#include "backend/cuda/device/matrix.cuh"
#include "backend/cuda/kernels.h"
#include "core/float8.h"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;

/// index / side. Sides of blocks divide 128, so they are powers of two.
__device__ std::int64_t over_side(std::int64_t index, std::int64_t side) {
  return index >> (__ffs(static_cast<int>(side)) - 1);
}

/// The scale of an element, as the bits that are stored.
__device__ std::uint32_t stored_scale_at(const ScaleView& scales, std::int64_t row, std::int64_t col) {
  const std::int64_t index = scales.block_cols == 0 ? 0
                                                    : over_side(row, scales.block_rows) * scales.row_stride +
                                                          over_side(col, scales.block_cols) * scales.col_stride;
  if (scales.dtype == DType::kE8M0) return reinterpret_cast<const std::uint8_t*>(scales.data)[index];
  return reinterpret_cast<const std::uint32_t*>(scales.data)[index];
}

__device__ float decoded_scale(const ScaleView& scales, std::uint32_t stored) {
  return scales.dtype == DType::kE8M0 ? e8m0_to_f32(static_cast<std::uint8_t>(stored)) : float_from_bits(stored);
}

__device__ float scale_at(const ScaleView& scales, std::int64_t row, std::int64_t col) {
  return decoded_scale(scales, stored_scale_at(scales, row, col));
}

/// element * scale. Its NaN is the NaN of x86: an operand's own NaN or, for infinity times zero, the negative
/// quiet NaN.
__device__ float decoded(float element, float scale) {
  const float product = element * scale;
  if (product == product) return product;
  const float cause = element != element ? element : scale;
  return float_from_bits(cause != cause ? float_bits(cause) | kFloatQuietNanBits : 0xFFC00000u);
}

__global__ void dequantize_any_kernel(OperandView in, MatrixView out) {
  const std::int64_t count = out.rows * out.cols;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / out.cols, col = i % out.cols;
    store_element(out, row, col, decoded(load_element(in.values, row, col), scale_at(in.scales, row, col)));
  }
}

/// Two 8-bit values as floats, exactly, by the GPU's conversion instructions; the caller handles NaNs.
template <DType Float8>
__device__ float2 decoded_pair(std::uint32_t data) {
  constexpr __nv_fp8_interpretation_t kKind = Float8 == DType::kE4M3 ? __NV_E4M3 : __NV_E5M2;
  return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(data), kKind)));
}

/// Dequantizes eight 8-bit values, each with its scale, to eight elements.
template <DType Float8, DType Out>
__device__ void dequantize_octet(uint2 data, const float (&scales)[8], std::byte* to) {
  float values[8];
  bool nan = false;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    const float2 pair = decoded_pair<Float8>((j < 4 ? data.x : data.y) >> (8 * (j % 4)) & 0xFFFFu);
    values[j] = pair.x * scales[j];
    values[j + 1] = pair.y * scales[j + 1];
    nan |= values[j] != values[j] || values[j + 1] != values[j + 1];
  }
  auto* const pieces = reinterpret_cast<uint4*>(to);
  if (nan) {
    using Storage = typename Element<Out>::Storage;
    for (int j = 0; j < 8; ++j) {
      const auto code = static_cast<std::uint8_t>((j < 4 ? data.x : data.y) >> (8 * (j % 4)));
      reinterpret_cast<Storage*>(to)[j] = Element<Out>::store(decoded(Element<Float8>::load(code), scales[j]));
    }
  } else if constexpr (Out == DType::kF32) {
    pieces[0] = make_uint4(float_bits(values[0]), float_bits(values[1]), float_bits(values[2]), float_bits(values[3]));
    pieces[1] = make_uint4(float_bits(values[4]), float_bits(values[5]), float_bits(values[6]), float_bits(values[7]));
  } else {
    pieces[0] = make_uint4(pack_numbers<Out>(values[0], values[1]), pack_numbers<Out>(values[2], values[3]),
                           pack_numbers<Out>(values[4], values[5]), pack_numbers<Out>(values[6], values[7]));
  }
}

constexpr int kOctets = 4;  // octets in flight per thread

/// A matrix whose rows consist of octets, in and out. An octet has one scale or, in blocks one column wide, each
/// element has its own.
struct OctetTask {
  OperandView in;
  MatrixView out;
  std::int64_t per_row;  ///< octets per row
};

/// Loads the scales together with the quantized data: loaded after them, blocks of 128 took 1.4 times as long.
template <DType Float8, DType Out, bool kOneEach>
__global__ void __launch_bounds__(kThreads) dequantize_octets_kernel(const __grid_constant__ OctetTask task) {
  constexpr int kBytes = sizeof(typename Element<Out>::Storage);
  const MatrixView& data_in = task.in.values;
  const ScaleView& scales_in = task.in.scales;
  const std::int64_t first = std::int64_t{blockIdx.x} * (blockDim.x * kOctets) + threadIdx.x;
  const std::int64_t rows_at_once = std::int64_t{gridDim.y} * blockDim.y;
  for (std::int64_t row = std::int64_t{blockIdx.y} * blockDim.y + threadIdx.y; row < task.out.rows;
       row += rows_at_once) {
    uint2 data[kOctets];
    std::uint32_t scales[kOctets];
#pragma unroll
    for (int k = 0; k < kOctets; ++k) {
      const std::int64_t octet = first + k * blockDim.x;
      if (octet >= task.per_row) continue;
      data[k] = __ldg(reinterpret_cast<const uint2*>(data_in.data + row * data_in.row_stride + 8 * octet));
      if (!kOneEach) scales[k] = stored_scale_at(scales_in, row, 8 * octet);
    }
#pragma unroll
    for (int k = 0; k < kOctets; ++k) {
      const std::int64_t octet = first + k * blockDim.x;
      if (octet >= task.per_row) continue;
      const float shared = kOneEach ? 0.0f : decoded_scale(scales_in, scales[k]);
      float own[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) own[j] = kOneEach ? scale_at(scales_in, row, 8 * octet + j) : shared;
      dequantize_octet<Float8, Out>(data[k], own, task.out.data + (row * task.out.row_stride + 8 * octet) * kBytes);
    }
  }
}

template <DType Float8, DType Out>
void launch_octets(const OctetTask& task, const CudaContext& context) {
  constexpr std::int64_t kMostGridRows = 65535;
  unsigned across = 1;
  while (across < kThreads && across * kOctets < task.per_row) across *= 2;
  const dim3 block(across, kThreads / across);
  const std::int64_t step = across * kOctets;
  const dim3 grid(
      static_cast<unsigned>((task.per_row + step - 1) / step),
      static_cast<unsigned>(std::min<std::int64_t>((task.out.rows + block.y - 1) / block.y, kMostGridRows)));
  const auto kernel = task.in.scales.block_cols == 1 ? dequantize_octets_kernel<Float8, Out, true>
                                                     : dequantize_octets_kernel<Float8, Out, false>;
  kernel<<<grid, block, 0, context.stream()>>>(task);
}

template <DType Float8>
void launch_octets(const OctetTask& task, const CudaContext& context) {
  switch (task.out.dtype) {
    case DType::kF32: return launch_octets<Float8, DType::kF32>(task, context);
    case DType::kBF16: return launch_octets<Float8, DType::kBF16>(task, context);
    default: return launch_octets<Float8, DType::kF16>(task, context);
  }
}

bool holds_octets(const MatrixView& matrix) {
  const auto width = static_cast<std::int64_t>(size_bytes(matrix.dtype));
  const std::int64_t alignment = width == 1 ? 8 : 16;
  return matrix.col_stride == 1 && matrix.cols % 8 == 0 && matrix.row_stride * width % alignment == 0 &&
         reinterpret_cast<std::uintptr_t>(matrix.data) % static_cast<std::uintptr_t>(alignment) == 0;
}

DequantizeArgs transposed(const DequantizeArgs& args) {
  DequantizeArgs other{.in = args.in, .out = args.out.transposed()};
  other.in.values = args.in.values.transposed();
  std::swap(other.in.scales.block_rows, other.in.scales.block_cols);
  std::swap(other.in.scales.row_stride, other.in.scales.col_stride);
  return other;
}

bool octets_take(const DequantizeArgs& args) {
  const std::int64_t across = args.in.scales.block_cols;
  return holds_octets(args.in.values) && holds_octets(args.out) && (across == 1 || across % 8 == 0);
}

void dequantize_octets(const DequantizeArgs& args, const CudaContext& context) {
  OctetTask task{.in = args.in, .out = args.out, .per_row = args.out.cols / 8};
  if (args.in.scales.block_cols == 0 && args.in.values.contiguous() && args.out.contiguous()) {
    task.per_row = args.out.numel() / 8;
    task.out.rows = 1;
  }
  if (args.in.values.dtype == DType::kE4M3)
    launch_octets<DType::kE4M3>(task, context);
  else
    launch_octets<DType::kE5M2>(task, context);
  cuda_check_launch("dequantize_octets_kernel");
}

}  // namespace

void dequantize(const DequantizeArgs& args, ExecContext& context) {
  if (args.out.numel() == 0) return;
  const CudaContext& gpu = cuda_context(context);
  if (octets_take(args)) return dequantize_octets(args, gpu);
  if (const DequantizeArgs other = transposed(args); octets_take(other)) return dequantize_octets(other, gpu);
  constexpr std::int64_t kMostBlocks = 16384;
  const std::int64_t blocks = std::min((args.out.numel() + kThreads - 1) / kThreads, kMostBlocks);
  dequantize_any_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, gpu.stream()>>>(args.in, args.out);
  cuda_check_launch("dequantize_any_kernel");
}

}  // namespace fp8lab::cuda

#include <algorithm>
#include <utility>

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

/// Eight values of a row, rounded by the card's instructions where none is NaN.
template <DType Out>
__device__ void store_octet(std::byte* to, const float (&values)[8]) {
  using Storage = typename Element<Out>::Storage;
  union {
    Storage elements[8];
    uint4 pieces[sizeof(Storage) / 2];
  } packed;
#pragma unroll
  for (int j = 0; j < 8; ++j) packed.elements[j] = Element<Out>::store(values[j]);
#pragma unroll
  for (unsigned i = 0; i < sizeof(Storage) / 2; ++i) reinterpret_cast<uint4*>(to)[i] = packed.pieces[i];
}

constexpr int kOctets = 4;  // in flight per thread

/// Octets along rows, `per_row` to each; a scale serves an octet, or, in blocks one column wide, each element has its own.
template <DType Payload, DType Out>
__global__ void __launch_bounds__(kThreads) dequantize_octets_kernel(OperandView in, MatrixView out, std::uint32_t per_row) {
  constexpr int kBytes = sizeof(typename Element<Out>::Storage);
  const std::int64_t count = std::int64_t{per_row} * out.rows;
  const std::int64_t first = std::int64_t{blockIdx.x} * (kThreads * kOctets) + threadIdx.x;
  uint2 codes[kOctets];
  std::int64_t rows[kOctets], cols[kOctets];
#pragma unroll
  for (int k = 0; k < kOctets; ++k) {
    const std::int64_t at = first + k * kThreads;
    rows[k] = out.rows == 1 ? 0 : at / per_row;
    cols[k] = 8 * (at - rows[k] * per_row);
    if (at < count) codes[k] = *reinterpret_cast<const uint2*>(in.values.data + rows[k] * in.values.row_stride + cols[k]);
  }
#pragma unroll
  for (int k = 0; k < kOctets; ++k) {
    if (first + k * kThreads >= count) continue;
    const bool own_scales = in.scales.block_cols == 1;
    const float shared = own_scales ? 0.0f : scale_at(in.scales, rows[k], cols[k]);
    float values[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto code = static_cast<std::uint8_t>((j < 4 ? codes[k].x : codes[k].y) >> (8 * (j % 4)));
      const float scale = own_scales ? scale_at(in.scales, rows[k], cols[k] + j) : shared;
      values[j] = decoded(Element<Payload>::load(code), scale);
    }
    store_octet<Out>(out.data + (rows[k] * out.row_stride + cols[k]) * kBytes, values);
  }
}

template <DType Payload, DType Out>
void launch_octets(const OperandView& in, const MatrixView& out, const CudaContext& card) {
  const auto per_row = static_cast<std::uint32_t>(out.cols / 8);
  const std::int64_t blocks = (per_row * out.rows + kThreads * kOctets - 1) / (kThreads * kOctets);
  dequantize_octets_kernel<Payload, Out><<<static_cast<unsigned>(blocks), kThreads, 0, card.stream()>>>(in, out, per_row);
}

template <DType Payload>
void launch_octets(const OperandView& in, const MatrixView& out, const CudaContext& card) {
  switch (out.dtype) {
    case DType::kF32: return launch_octets<Payload, DType::kF32>(in, out, card);
    case DType::kBF16: return launch_octets<Payload, DType::kBF16>(in, out, card);
    default: return launch_octets<Payload, DType::kF16>(in, out, card);
  }
}

bool holds_octets(const MatrixView& matrix) {
  const auto width = static_cast<std::int64_t>(size_bytes(matrix.dtype));
  const std::int64_t alignment = width == 1 ? 8 : 16;
  return matrix.col_stride == 1 && matrix.cols % 8 == 0 && matrix.row_stride * width % alignment == 0 &&
         reinterpret_cast<std::uintptr_t>(matrix.data) % static_cast<std::uintptr_t>(alignment) == 0;
}

DequantizeArgs turned(const DequantizeArgs& args) {
  DequantizeArgs other{.in = args.in, .out = args.out.transposed()};
  other.in.values = args.in.values.transposed();
  std::swap(other.in.scales.block_rows, other.in.scales.block_cols);
  std::swap(other.in.scales.row_stride, other.in.scales.col_stride);
  return other;
}

bool octets_take(const DequantizeArgs& args) {
  const std::int64_t across = args.in.scales.block_cols;
  return holds_octets(args.in.values) && holds_octets(args.out) && (across == 1 || across % 8 == 0) &&
         args.out.numel() / 8 < std::int64_t{1} << 31;
}

void dequantize_octets(const DequantizeArgs& args, const CudaContext& card) {
  OperandView in = args.in;
  MatrixView out = args.out;
  if (in.scales.block_cols == 0 && in.values.contiguous() && out.contiguous()) {
    out.cols = out.numel();
    out.rows = 1;
  }
  if (in.values.dtype == DType::kE4M3)
    launch_octets<DType::kE4M3>(in, out, card);
  else
    launch_octets<DType::kE5M2>(in, out, card);
  cuda_check_launch("dequantize_octets_kernel");
}

}  // namespace

void dequantize(const DequantizeArgs& args, ExecContext& context) {
  if (args.out.numel() == 0) return;
  const CudaContext& card = cuda_context(context);
  if (octets_take(args)) return dequantize_octets(args, card);
  if (const DequantizeArgs other = turned(args); octets_take(other)) return dequantize_octets(other, card);
  constexpr std::int64_t kMostBlocks = 16384;
  const std::int64_t blocks = std::min((args.out.numel() + kThreads - 1) / kThreads, kMostBlocks);
  dequantize_any_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, card.stream()>>>(args.in, args.out);
  cuda_check_launch("dequantize_any_kernel");
}

}  // namespace fp8lab::cuda

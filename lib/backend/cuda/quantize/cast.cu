#include <string>

#include "backend/cuda/device/map.cuh"
#include "backend/cuda/device/transpose.cuh"
#include "backend/cuda/kernels.h"

namespace fp8lab::cuda {
namespace {

struct Convert {
  template <int Width>
  __device__ void operator()(const float (&in)[1][Width], float (&out)[1][Width], std::int64_t, std::int64_t) const {
#pragma unroll
    for (int j = 0; j < Width; ++j) out[0][j] = in[0][j];
  }
};

struct Copy {
  const std::byte* in;
  std::int64_t in_row_stride;
  std::int64_t in_col_stride;
  std::byte* out;
  std::int64_t out_row_stride;
  std::int64_t out_col_stride;
  std::int64_t rows;
  std::int64_t cols;
};

constexpr int kCopyThreads = 256;

template <class Bits>
__global__ void __launch_bounds__(kCopyThreads) copy_kernel(const Copy args) {
  const std::int64_t row_step = static_cast<std::int64_t>(gridDim.y) * blockDim.y;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < args.rows;
       row += row_step) {
    const auto* from = reinterpret_cast<const Bits*>(args.in) + row * args.in_row_stride;
    auto* to = reinterpret_cast<Bits*>(args.out) + row * args.out_row_stride;
    constexpr int kUnroll = 2;
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x * kUnroll + threadIdx.x;
    Bits bits[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (const std::int64_t col = first + u * blockDim.x; col < args.cols) bits[u] = from[col * args.in_col_stride];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (const std::int64_t col = first + u * blockDim.x; col < args.cols) to[col * args.out_col_stride] = bits[u];
  }
}

template <class Bits>
void launch_copy(const Copy& args, CudaContext& context) {
  constexpr std::int64_t kMostGridRows = 65535, kUnroll = 2;
  unsigned across = 1;
  while (across < kCopyThreads && across < args.cols) across *= 2;
  const dim3 block(across, kCopyThreads / across);
  const std::int64_t row_groups = (args.rows + block.y - 1) / block.y;
  const std::int64_t step = across * kUnroll;
  const dim3 grid(static_cast<unsigned>((args.cols + step - 1) / step),
                  static_cast<unsigned>(row_groups < kMostGridRows ? row_groups : kMostGridRows));
  copy_kernel<Bits><<<grid, block, 0, context.stream()>>>(args);
  cuda_check_launch("copy_kernel");
}

void transpose_bits(const MatrixView& in, const MatrixView& out, CudaContext& context) {
  const Transpose args{.in = in.data,
                       .in_stride = in.row_stride,
                       .rows = in.rows,
                       .cols = in.cols,
                       .out = out.data,
                       .out_stride = out.col_stride};
  switch (size_bytes(in.dtype)) {
    case 1: return transpose<std::uint8_t>(args, context);
    case 2: return transpose<std::uint16_t>(args, context);
    case 4: return transpose<std::uint32_t>(args, context);
    default: return transpose<std::uint64_t>(args, context);
  }
}

/// True if rows consist of full, aligned 16-byte words.
bool holds_words(const MatrixView& view) {
  const auto size = static_cast<std::int64_t>(size_bytes(view.dtype));
  return reinterpret_cast<std::uintptr_t>(view.data) % sizeof(uint4) == 0 && view.col_stride == 1 &&
         view.cols * size % 16 == 0 && view.row_stride * size % 16 == 0;
}

/// Copies elements bit for bit, whatever their type, between matrices of any strides.
void copy_bits(const MatrixView& in, const MatrixView& out, CudaContext& context) {
  const std::size_t size = size_bytes(in.dtype);
  if (in.contiguous() && out.contiguous()) {
    if (in.data == out.data) return;
    return cuda_check(cudaMemcpyAsync(out.data, in.data, static_cast<std::size_t>(in.numel()) * size,
                                      cudaMemcpyDeviceToDevice, context.stream()),
                      "cudaMemcpyAsync");
  }
  if (in.rows > 1 && in.cols > 1) {
    if (in.col_stride == 1 && out.row_stride == 1) return transpose_bits(in, out, context);
    if (in.row_stride == 1 && out.col_stride == 1) return transpose_bits(in.transposed(), out.transposed(), context);
    if (in.row_stride == 1 && out.row_stride == 1) return copy_bits(in.transposed(), out.transposed(), context);
  }
  Copy args{.in = in.data,
            .in_row_stride = in.row_stride,
            .in_col_stride = in.col_stride,
            .out = out.data,
            .out_row_stride = out.row_stride,
            .out_col_stride = out.col_stride,
            .rows = in.rows,
            .cols = in.cols};
  if (holds_words(in) && holds_words(out)) {
    const auto per_word = static_cast<std::int64_t>(sizeof(uint4) / size);
    args.in_row_stride /= per_word;
    args.out_row_stride /= per_word;
    args.cols /= per_word;
    return launch_copy<uint4>(args, context);
  }
  switch (size) {
    case 1: return launch_copy<std::uint8_t>(args, context);
    case 2: return launch_copy<std::uint16_t>(args, context);
    case 4: return launch_copy<std::uint32_t>(args, context);
    default: return launch_copy<std::uint64_t>(args, context);
  }
}

void check_convertible(const MatrixView& in, const MatrixView& out) {
  if (in.dtype == DType::kI64) fail("cuda: i64 elements cannot be read as floats");
  switch (out.dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kE4M3:
    case DType::kE5M2: return;
    default: fail("cuda: floats cannot be stored as " + std::string(name(out.dtype)));
  }
}

}  // namespace

void cast(const CastArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  if (args.in.numel() == 0) return;
  if (args.in.dtype == args.out.dtype) return copy_bits(args.in, args.out, gpu);
  check_convertible(args.in, args.out);
  if (args.in.row_stride == 1 && args.out.row_stride == 1 && args.in.rows > 1)
    return map<1, 1, kAnyTypes>({args.in.transposed()}, {args.out.transposed()}, Convert{}, gpu);
  map<1, 1, kAnyTypes>({args.in}, {args.out}, Convert{}, gpu);
}

}  // namespace fp8lab::cuda

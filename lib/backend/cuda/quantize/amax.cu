#include <algorithm>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/matrix.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/quantize/device/fresh_amax.cuh"
#include "backend/cuda/quantize/device/vector_cast.cuh"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 4;

/// The target of a block's result: combined over the launch's blocks and then stored if `fresh`, else raised in place.
struct Result {
  FreshAmax fresh_amax;
  bool fresh;
};

/// The end of a kernel: puts the largest magnitude of a block into the result.
__device__ void settle(std::uint32_t largest, const Result& result) {
  if (result.fresh) return settle(largest, result.fresh_amax);
  __shared__ std::uint32_t words[kThreads / 32];
  largest = block_max(largest, words);
  if (threadIdx.x == 0) raise_amax(result.fresh_amax.amax, largest);
}

/// Rows of full vectors of eight elements, fewer than 2^32 of them. A contiguous matrix is one row; `rest` is the
/// number of elements behind it that fill no vector.
struct VectorRows {
  const std::byte* data;
  std::int64_t pitch;  ///< in bytes
  std::uint32_t vectors_per_row;
  std::uint32_t rows;
  int rest;
};

template <DType In>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    amax_vectors_kernel(VectorRows in, Result result) {
  constexpr int kBytes = 8 * kBytesOf<In>;
  constexpr int kVectors = 128 / kBytes;  // vectors in flight per thread
  const std::int64_t count = std::int64_t{in.vectors_per_row} * in.rows, threads = std::int64_t{gridDim.x} * kThreads;
  std::uint32_t largest = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; first < count;
       first += threads * kVectors) {
    Vector<In, 8> vectors[kVectors];
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const std::int64_t at = first + k * threads;
      if (at >= count)
        vectors[k].zero();
      else if (in.rows == 1)
        vectors[k].load_read_only(in.data + at * kBytes);
      else
        vectors[k].load_read_only(in.data + static_cast<std::uint32_t>(at) / in.vectors_per_row * in.pitch +
                                  static_cast<std::uint32_t>(at) % in.vectors_per_row * kBytes);
    }
#pragma unroll
    for (int k = 0; k < kVectors; ++k) largest = Magnitudes<In>::larger(largest, Magnitudes<In>::folded(vectors[k]));
  }
  if (in.rest > 0 && blockIdx.x == 0 && threadIdx.x == 0) {
    Vector<In, 8> vector;
    vector.load_some(in.data + count * kBytes, in.rest);
    largest = Magnitudes<In>::larger(largest, Magnitudes<In>::folded(vector));
  }
  settle(Magnitudes<In>::unfolded(largest), result);
}

__global__ void __launch_bounds__(kThreads) amax_any_kernel(MatrixView in, Result result) {
  std::uint32_t largest = 0;
  const std::int64_t count = in.rows * in.cols;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads)
    largest = max(largest, magnitude(load_element(in, i / in.cols, i % in.cols)));
  settle(largest, result);
}

/// The number of blocks that the GPU holds at once, or fewer if there is less work.
unsigned grid_for(std::int64_t items, const CudaContext& context) {
  const std::int64_t most = std::int64_t{kBlocksPerMultiprocessor} * context.multiprocessors();
  return static_cast<unsigned>(std::clamp<std::int64_t>((items + kThreads - 1) / kThreads, 1, most));
}

void amax_vectors(const VectorRows& in, DType dtype, const Result& result, const CudaContext& context) {
  const unsigned blocks = grid_for(std::int64_t{in.vectors_per_row} * in.rows, context);
  switch (dtype) {
    case DType::kF32: amax_vectors_kernel<DType::kF32><<<blocks, kThreads, 0, context.stream()>>>(in, result); break;
    case DType::kBF16: amax_vectors_kernel<DType::kBF16><<<blocks, kThreads, 0, context.stream()>>>(in, result); break;
    default: amax_vectors_kernel<DType::kF16><<<blocks, kThreads, 0, context.stream()>>>(in, result);
  }
  cuda_check_launch("amax_vectors_kernel");
}

}  // namespace

void amax(const AmaxArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  const Result result{FreshAmax(args.amax, gpu), args.fresh};
  // An amax does not depend on the order of elements, so they are read in memory order.
  const MatrixView in = args.in.col_stride != 1 && args.in.row_stride == 1 ? args.in.transposed() : args.in;
  const auto width = static_cast<std::int64_t>(size_bytes(in.dtype));
  const std::int64_t count = in.numel();
  const bool aligned = reinterpret_cast<std::uintptr_t>(in.data) % 16 == 0 && count / 8 <= 0xFFFFFFFFll;
  if (aligned && in.contiguous()) {
    const VectorRows one{in.data, 0, static_cast<std::uint32_t>(count / 8), 1, static_cast<int>(count % 8)};
    return amax_vectors(one, in.dtype, result, gpu);
  }
  if (aligned && in.col_stride == 1 && in.row_stride * width % 16 == 0 && in.cols % 8 == 0) {
    const VectorRows rows{in.data, in.row_stride * width, static_cast<std::uint32_t>(in.cols / 8),
                          static_cast<std::uint32_t>(in.rows), 0};
    return amax_vectors(rows, in.dtype, result, gpu);
  }
  amax_any_kernel<<<grid_for(count, gpu), kThreads, 0, gpu.stream()>>>(in, result);
  cuda_check_launch("amax_any_kernel");
}

void measure(const MatrixView& result, float* place, ExecContext& context) {
  if (place != nullptr) amax({.in = result, .amax = place, .fresh = true}, context);
}

}  // namespace fp8lab::cuda

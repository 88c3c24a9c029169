#include <algorithm>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/magnitudes.cuh"
#include "backend/cuda/device/matrix.cuh"
#include "backend/cuda/device/octets.cuh"
#include "backend/cuda/kernels.h"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kOctets = 8;  // in flight per thread
constexpr std::int64_t kChunk = std::int64_t{kThreads} * kOctets;

/// Rows of whole octets; a contiguous matrix is one row.
struct OctetRows {
  const std::byte* data;
  std::int64_t pitch;  ///< bytes
  std::uint32_t octets_per_row;
  std::uint32_t rows;
};

template <DType In>
__global__ void __launch_bounds__(kThreads) amax_octets_kernel(OctetRows in, float* amax) {
  __shared__ std::uint32_t words[kThreads / 32];
  constexpr int kBytes = 8 * (Octet<In>::kWide ? 4 : 2);
  const std::int64_t count = std::int64_t{in.octets_per_row} * in.rows, first = blockIdx.x * kChunk + threadIdx.x;
  Octet<In> octets[kOctets];
#pragma unroll
  for (int k = 0; k < kOctets; ++k) {
    const std::int64_t at = first + k * kThreads;
    if (at >= count)
      octets[k].zero();
    else if (in.rows == 1)
      octets[k].load(in.data + at * kBytes);
    else
      octets[k].load(in.data + at / in.octets_per_row * in.pitch + at % in.octets_per_row * kBytes);
  }
  std::uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < kOctets; ++k) largest = Magnitudes<In>::larger(largest, Magnitudes<In>::folded(octets[k]));
  largest = block_max(Magnitudes<In>::unfolded(largest), words);
  if (threadIdx.x == 0) raise_amax(amax, largest);
}

__global__ void amax_any_kernel(MatrixView in, float* amax) {
  __shared__ std::uint32_t words[kThreads / 32];
  std::uint32_t largest = 0;
  const std::int64_t count = in.rows * in.cols;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * kThreads)
    largest = max(largest, magnitude(load_element(in, i / in.cols, i % in.cols)));
  largest = block_max(largest, words);
  if (threadIdx.x == 0) raise_amax(amax, largest);
}

void amax_any(const MatrixView& in, float* amax, const CudaContext& card) {
  constexpr std::int64_t kMostBlocks = 16384;
  const std::int64_t blocks = std::clamp<std::int64_t>((in.numel() + kThreads - 1) / kThreads, 1, kMostBlocks);
  amax_any_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, card.stream()>>>(in, amax);
  cuda_check_launch("amax_any_kernel");
}

void amax_octets(const OctetRows& in, DType dtype, float* amax, const CudaContext& card) {
  const auto blocks = static_cast<unsigned>((std::int64_t{in.octets_per_row} * in.rows + kChunk - 1) / kChunk);
  switch (dtype) {
    case DType::kF32: amax_octets_kernel<DType::kF32><<<blocks, kThreads, 0, card.stream()>>>(in, amax); break;
    case DType::kBF16: amax_octets_kernel<DType::kBF16><<<blocks, kThreads, 0, card.stream()>>>(in, amax); break;
    default: amax_octets_kernel<DType::kF16><<<blocks, kThreads, 0, card.stream()>>>(in, amax);
  }
  cuda_check_launch("amax_octets_kernel");
}

}  // namespace

void amax(const AmaxArgs& args, ExecContext& context) {
  const CudaContext& card = cuda_context(context);
  // The order of elements does not matter, so take the one that memory has.
  MatrixView in = args.in.col_stride != 1 && args.in.row_stride == 1 ? args.in.transposed() : args.in;
  const std::int64_t width = static_cast<std::int64_t>(size_bytes(in.dtype));
  const std::int64_t count = in.numel(), limit = std::int64_t{1} << 31;
  const bool run = in.contiguous();
  const bool vectors = in.col_stride == 1 && in.row_stride * width % 16 == 0 && in.cols % 8 == 0;
  if (count < 8 || count / 8 >= limit || reinterpret_cast<std::uintptr_t>(in.data) % 16 != 0 || !(run || vectors))
    return amax_any(in, args.amax, card);
  if (!run) {
    const OctetRows rows{in.data, in.row_stride * width, static_cast<std::uint32_t>(in.cols / 8),
                         static_cast<std::uint32_t>(in.rows)};
    return amax_octets(rows, in.dtype, args.amax, card);
  }
  amax_octets({in.data, 0, static_cast<std::uint32_t>(count / 8), 1}, in.dtype, args.amax, card);
  if (count % 8 == 0) return;
  const MatrixView rest{.data = in.data + (count - count % 8) * width, .dtype = in.dtype, .rows = 1, .cols = count % 8,
                        .row_stride = 0, .col_stride = 1};
  amax_any(rest, args.amax, card);
}

}  // namespace fp8lab::cuda

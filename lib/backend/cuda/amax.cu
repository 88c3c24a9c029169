#include <algorithm>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/magnitudes.cuh"
#include "backend/cuda/device/matrix.cuh"
#include "backend/cuda/kernels.h"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void amax_any_kernel(MatrixView in, float* amax) {
  __shared__ std::uint32_t words[kThreads / 32];
  std::uint32_t largest = 0;
  const std::int64_t count = in.rows * in.cols;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * kThreads)
    largest = max(largest, magnitude(load_element(in, i / in.cols, i % in.cols)));
  largest = block_max(largest, words);
  if (threadIdx.x == 0) raise_amax(amax, largest);
}

}  // namespace

void amax(const AmaxArgs& args, ExecContext& context) {
  const CudaContext& card = cuda_context(context);
  constexpr std::int64_t kMostBlocks = 16384;
  const std::int64_t blocks = std::clamp<std::int64_t>((args.in.numel() + kThreads - 1) / kThreads, 1, kMostBlocks);
  amax_any_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, card.stream()>>>(args.in, args.amax);
  cuda_check_launch("amax_any_kernel");
}

}  // namespace fp8lab::cuda

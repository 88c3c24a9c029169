#include "backend/cuda/cuda_check.h"
#include "backend/cuda/context.h"
#include "backend/cuda/device/norm_rows.cuh"
#include "backend/cuda/kernels.h"

namespace fp8lab::cuda {
namespace {

struct Forward {
  Elements x;
  Elements gamma;
  Elements beta;
  Elements y;
  float* mean;
  std::int64_t mean_stride;
  float* rstd;
  std::int64_t rstd_stride;
  std::int64_t rows;
  std::int64_t cols;
  float epsilon;
};

// Each block takes rows a grid apart, and reads the next while it sums the one it has.
template <bool Centred, DType Type, int Runs>
__global__ void __launch_bounds__(kSumThreads) norm_forward_kernel(const Forward args) {
  __shared__ float shared[2][2][kSumWarps];  // of odd and even rows, means and variances
  const int cols = static_cast<int>(args.cols);
  const float count = static_cast<float>(cols);
  float gamma[Runs][kSumRun], beta[Centred ? Runs : 1][kSumRun];
  read_vector(args.gamma, cols, gamma);
  if constexpr (Centred) read_vector(args.beta, cols, beta);

  KeptRow<Type, Runs> next;
  std::int64_t row = blockIdx.x;
  next.read(args.x, row, cols);
  for (int turn = 0; row < args.rows; turn ^= 1) {
    const KeptRow<Type, Runs> kept = next;
    if (row + gridDim.x < args.rows) next.read(args.x, row + gridDim.x, cols);

    float mean = 0.0f;
    if constexpr (Centred) {
      float lanes[kSumRun] = {};
      for_runs<Runs>(cols, [&](int r, int) {
        float x[kSumRun];
        kept.get(r, x);
#pragma unroll
        for (int j = 0; j < kSumRun; ++j) lanes[j] += x[j];
      });
      mean = join_block(lanes, shared[turn][0]) / count;
    }
    float lanes[kSumRun] = {};
    for_runs<Runs>(cols, [&](int r, int) {
      float x[kSumRun];
      kept.get(r, x);
#pragma unroll
      for (int j = 0; j < kSumRun; ++j) lanes[j] += (x[j] - mean) * (x[j] - mean);
    });
    const float variance = join_block(lanes, shared[turn][1]) / count;
    const float rstd = 1.0f / sqrtf(variance + args.epsilon);
    for_runs<Runs>(cols, [&](int r, int col) {
      float values[kSumRun];
      kept.get(r, values);
#pragma unroll
      for (int j = 0; j < kSumRun; ++j) {
        values[j] = (values[j] - mean) * rstd * gamma[r][j];
        if constexpr (Centred) values[j] += beta[r][j];
      }
      store_kept<Type>(values, args.y, row, col);
    });
    if (threadIdx.x == 0) {
      if constexpr (Centred) args.mean[row * args.mean_stride] = mean;
      args.rstd[row * args.rstd_stride] = rstd;
    }
    row += gridDim.x;
  }
}

template <bool Centred>
__global__ void __launch_bounds__(kSumThreads) norm_forward_any_kernel(const Forward args) {
  __shared__ float shared[2][kSumWarps];
  const std::int64_t row = blockIdx.x;
  const float count = static_cast<float>(args.cols);
  float mean = 0.0f;
  if constexpr (Centred) {
    float lanes[kSumRun] = {};
    for_elements(args.cols, [&](std::int64_t col, int lane) { lanes[lane] += load_element(args.x, row, col); });
    mean = join_block(lanes, shared[0]) / count;
  }
  float lanes[kSumRun] = {};
  for_elements(args.cols, [&](std::int64_t col, int lane) {
    const float x = load_element(args.x, row, col);
    lanes[lane] += (x - mean) * (x - mean);
  });
  const float variance = join_block(lanes, shared[1]) / count;
  const float rstd = 1.0f / sqrtf(variance + args.epsilon);
  for_elements(args.cols, [&](std::int64_t col, int) {
    float y = (load_element(args.x, row, col) - mean) * rstd * load_element(args.gamma, 0, col);
    if constexpr (Centred) y += load_element(args.beta, 0, col);
    store_element(y, args.y, row, col);
  });
  if (threadIdx.x == 0) {
    if constexpr (Centred) args.mean[row * args.mean_stride] = mean;
    args.rstd[row * args.rstd_stride] = rstd;
  }
}

template <bool Centred, DType Type, int Runs>
void launch_kept(const Forward& args, CudaContext& card) {
  static const int kBlocks = [] {
    int blocks = 0;
    cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, norm_forward_kernel<Centred, Type, Runs>, kSumThreads, 0),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    return blocks;
  }();
  const std::int64_t resident = std::int64_t{kBlocks} * card.multiprocessors();
  const auto grid = static_cast<unsigned>(resident < args.rows ? resident : args.rows);
  norm_forward_kernel<Centred, Type, Runs><<<grid, kSumThreads, 0, card.stream()>>>(args);
  cuda_check_launch("norm_forward_kernel");
}

template <bool Centred, DType Type>
void launch_typed(const Forward& args, CudaContext& card) {
  if (args.cols <= 2 * kSumLanes) return launch_kept<Centred, Type, 2>(args, card);
  if (args.cols <= 4 * kSumLanes) return launch_kept<Centred, Type, 4>(args, card);
  launch_kept<Centred, Type, 8>(args, card);
}

template <bool Centred>
void launch(const Forward& args, bool kept, CudaContext& card) {
  if (kept && args.x.dtype == DType::kBF16) return launch_typed<Centred, DType::kBF16>(args, card);
  if (kept && args.x.dtype == DType::kF32) return launch_typed<Centred, DType::kF32>(args, card);
  norm_forward_any_kernel<Centred><<<static_cast<unsigned>(args.rows), kSumThreads, 0, card.stream()>>>(args);
  cuda_check_launch("norm_forward_any_kernel");
}

float* floats(const MatrixView& view) { return reinterpret_cast<float*>(view.data); }

}  // namespace

void norm_forward(const NormForwardArgs& args, ExecContext& context) {
  if (args.x.numel() == 0) return;
  const bool centred = args.kind == NormKind::kLayerNorm;
  const Forward forward{.x = elements(args.x),
                        .gamma = elements(args.gamma),
                        .beta = elements(args.beta),
                        .y = elements(args.y),
                        .mean = floats(args.mean),
                        .mean_stride = args.mean.row_stride,
                        .rstd = floats(args.rstd),
                        .rstd_stride = args.rstd.row_stride,
                        .rows = args.x.rows,
                        .cols = args.x.cols,
                        .epsilon = args.epsilon};
  const bool kept = args.x.cols <= kMostKeptCols && args.x.cols % kSumRun == 0 && args.x.dtype == args.y.dtype &&
                    holds_runs(args.x) && holds_runs(args.y) && holds_runs(args.gamma) && (!centred || holds_runs(args.beta));
  CudaContext& card = cuda_context(context);
  centred ? launch<true>(forward, kept, card) : launch<false>(forward, kept, card);
}

}  // namespace fp8lab::cuda

#pragma once

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/norm_rows.cuh"
#include "backend/cuda/norm_task.h"

// Norms of rows that a block keeps in registers, whatever becomes of y.
namespace fp8lab::cuda {

/// y as it is.
template <DType Type>
struct StoredRows {
  Elements y;

  __device__ void begin() {}
  __device__ void write(const float (&values)[kSumRun], std::int64_t row, int col) const {
    store_typed<Type, true>(values, y, row, col, kSumRun);
  }
  __device__ void finish() {}
};

// Each block takes rows a grid apart, and reads the next while it sums the one it has.
template <bool Centred, DType Type, int Runs, class Writer>
__global__ void __launch_bounds__(kSumThreads) norm_kernel(const NormTask task, Writer writer) {
  __shared__ float shared[2][2][kSumWarps];  // of odd and even rows, means and variances
  const int cols = static_cast<int>(task.cols);
  const float count = static_cast<float>(cols);
  float gamma[Runs][kSumRun], beta[Centred ? Runs : 1][kSumRun];
  const Elements gamma_vector = elements(task.gamma), beta_vector = elements(task.beta), x_rows = elements(task.x);
  read_vector(gamma_vector, cols, gamma);
  if constexpr (Centred) read_vector(beta_vector, cols, beta);
  writer.begin();

  KeptRow<Type, Runs> next;
  std::int64_t row = blockIdx.x;
  next.read(x_rows, row, cols);
  for (int turn = 0; row < task.rows; turn ^= 1) {
    const KeptRow<Type, Runs> kept = next;
    if (row + gridDim.x < task.rows) next.read(x_rows, row + gridDim.x, cols);

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
    const float rstd = 1.0f / sqrtf(variance + task.epsilon);
    for_runs<Runs>(cols, [&](int r, int col) {
      float values[kSumRun];
      kept.get(r, values);
#pragma unroll
      for (int j = 0; j < kSumRun; ++j) {
        values[j] = (values[j] - mean) * rstd * gamma[r][j];
        if constexpr (Centred) values[j] += beta[r][j];
      }
      writer.write(values, row, col);
    });
    if (threadIdx.x == 0) {
      if constexpr (Centred) task.mean[row * task.mean_stride] = mean;
      task.rstd[row * task.rstd_stride] = rstd;
    }
    row += gridDim.x;
  }
  writer.finish();
}

template <bool Centred, DType Type, int Runs, class Writer>
void launch_norm_runs(const NormTask& task, const Writer& writer, CudaContext& card) {
  static const int kBlocks = [] {
    int blocks = 0;
    cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, norm_kernel<Centred, Type, Runs, Writer>,
                                                             kSumThreads, 0),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    return blocks;
  }();
  const std::int64_t resident = std::int64_t{kBlocks} * card.multiprocessors();
  const auto grid = static_cast<unsigned>(resident < task.rows ? resident : task.rows);
  norm_kernel<Centred, Type, Runs, Writer><<<grid, kSumThreads, 0, card.stream()>>>(task, writer);
  cuda_check_launch("norm_kernel");
}

/// Of rows that registers hold: keeps_rows().
template <bool Centred, DType Type, class Writer>
void launch_norm(const NormTask& task, const Writer& writer, CudaContext& card) {
  if (task.cols <= 2 * kSumLanes) return launch_norm_runs<Centred, Type, 2>(task, writer, card);
  if (task.cols <= 4 * kSumLanes) return launch_norm_runs<Centred, Type, 4>(task, writer, card);
  launch_norm_runs<Centred, Type, 8>(task, writer, card);
}

}  // namespace fp8lab::cuda

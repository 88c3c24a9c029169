#pragma once

#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/device/row_ring.cuh"
#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/device/sums.cuh"

// Rows that a block reads once and keeps in registers, in runs of kSumRun elements, which are the terms of a thread's
// partial sums. Thread t of kSumThreads has runs t, t + kSumThreads, ...
namespace fp8lab::cuda {

inline constexpr int kSumWarps = kSumThreads / 32;

/// Calls work(i, col) for the thread's runs of a row that consists of full runs.
template <int Runs, class Work>
__device__ inline void for_runs(int cols, const Work& work) {
#pragma unroll
  for (int i = 0; i < Runs; ++i)
    if (const int col = i * kSumLanes + static_cast<int>(threadIdx.x) * kSumRun; col < cols) work(i, col);
}

/// A thread's runs of a row, kept in their stored type, which takes fewer registers than FP32.
template <DType Type, int Runs>
class KeptRow {
 public:
  using Storage = typename Element<Type>::Storage;

  /// Reads the thread's runs from `row` in shared memory.
  __device__ void read(const std::byte* row, int cols) {
    for_runs<Runs>(cols, [&](int i, int col) { runs_[i].load(reinterpret_cast<const Storage*>(row) + col); });
  }
  __device__ void get(int i, float (&values)[kSumRun]) const { widen(runs_[i], values); }

 private:
  Vector<Type, kSumRun> runs_[Runs];
};

/// Reads a vector of any real type into registers.
template <int Count>
__device__ inline void read_vector(const Elements& vector, int cols, float (&values)[Count][kSumRun]) {
  for_runs<Count>(cols, [&](int i, int col) { load_run<kRealTypes>(vector, 0, col, kSumRun, values[i]); });
}

/// Sums over the block of each of `Sums` partial sums, which take one barrier together. `shared` has room for a sum of
/// each warp, and may be reused after the block's next barrier.
template <int Sums>
__device__ inline void join_block(const float (&partials)[Sums][kSumRun], float (*shared)[kSumWarps],
                                  float (&totals)[Sums]) {
#pragma unroll
  for (int k = 0; k < Sums; ++k) {
    const float sum = join_warp(join_run(partials[k]));
    if (threadIdx.x % 32 == 0) shared[k][threadIdx.x / 32] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < Sums; ++k) totals[k] = join_warp_sums<kSumWarps>(shared[k]);
}
__device__ inline float join_block(const float (&partials)[kSumRun], float (&shared)[kSumWarps]) {
  return join_warps<kSumWarps>(join_warp(join_run(partials)), shared);
}

/// For rows of any strides and any number of columns: calls work(col, partial) for the thread's elements one by one;
/// `partial` is the index of their partial sum in the thread.
template <class Work>
__device__ inline void for_elements(std::int64_t cols, const Work& work) {
  for (std::int64_t col = threadIdx.x * kSumRun; col < cols; col += kSumLanes)
#pragma unroll
    for (int j = 0; j < kSumRun; ++j)
      if (col + j < cols) work(col + j, j);
}
__device__ inline float load_element(const Elements& matrix, std::int64_t row, std::int64_t col) {
  float value[1];
  load_run<kRealTypes>(matrix, row, col, 1, value);
  return value[0];
}
__device__ inline void store_element(float value, const Elements& matrix, std::int64_t row, std::int64_t col) {
  const float values[1] = {value};
  store_run<kRealTypes>(values, matrix, row, col, 1);
}

template <DType Type>
__device__ inline const std::byte* row_of(const Elements& matrix, std::int64_t row) {
  return matrix.data + row * matrix.row_stride * static_cast<std::int64_t>(sizeof(typename Element<Type>::Storage));
}

/// True if the rows of `x` can be kept in registers, and two of them in shared memory: they consist of full runs, and
/// of no more of them than kernels are instantiated for.
inline bool keeps_rows(const MatrixView& x, const CudaContext& context) {
  constexpr std::int64_t kMostCols = 8 * kSumLanes;
  return x.cols <= kMostCols && x.cols % kSumRun == 0 && holds_runs(x) &&
         ring_fits(static_cast<std::size_t>(x.cols) * size_bytes(x.dtype), context.shared_bytes());
}

}  // namespace fp8lab::cuda

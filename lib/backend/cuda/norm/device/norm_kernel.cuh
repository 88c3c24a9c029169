#pragma once

#include <type_traits>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/row_ring.cuh"
#include "backend/cuda/norm/device/norm_rows.cuh"
#include "backend/cuda/norm/norm_task.h"

// Norms of rows that a block keeps in registers, with a writer that stores, measures or casts y.
namespace fp8lab::cuda {

/// A writer that stores y.
template <DType Type>
struct StoredRows {
  static constexpr bool kTakesPairs = false;
  Elements y;

  __device__ void begin() {}
  __device__ void write(const float (&values)[kSumRun], std::int64_t row, int col) const {
    store_typed<Type, true>(values, y, row, col, kSumRun);
  }
  __device__ void finish() {}
};

/// Rows that a block processes at a time, behind one barrier: two while the registers hold both. Writers of pairs need
/// the registers themselves: with two rows they were slower.
template <DType Type, int Runs, int Adjacent>
constexpr int kRowsAtOnce = Adjacent == 1 && Runs * size_bytes(Type) <= 4 ? 2 : 1;

/// The sums over the block of term(x, k) over the elements x of each row k.
template <DType Type, int Runs, int Adjacent, int Rows, class Term>
__device__ inline void sum_rows(const KeptRow<Type, Runs, Adjacent> (&rows)[Rows], int cols, float (*shared)[kSumWarps],
                                float (&totals)[Rows], const Term& term) {
  float partials[Rows * Adjacent][kSumRun] = {};
  for_runs<Runs, Adjacent>(cols, [&](int i, int) {
#pragma unroll
    for (int k = 0; k < Rows; ++k) {
      float x[kSumRun];
      rows[k].get(i, x);
#pragma unroll
      for (int j = 0; j < kSumRun; ++j) partials[k * Adjacent + i % Adjacent][j] += term(x[j], k);
    }
  });
  join_block<Rows, Adjacent>(partials, shared, totals);
}

// Each block processes rows a grid apart; the ring loads the next rows while it works. If threads have two neighbouring
// runs (`Adjacent`), rows consist of full pairs.
template <bool Centred, DType Type, int Runs, int Adjacent, class Writer>
__global__ void __launch_bounds__(kSumThreads / Adjacent) norm_kernel(const NormTask task, int stages, Writer writer) {
  constexpr int kRows = kRowsAtOnce<Type, Runs, Adjacent>;
  extern __shared__ __align__(128) std::byte slots[];
  __shared__ std::uint64_t full[kMostStages];
  __shared__ float shared[2][2][kRows][kSumWarps];  // sums of even and odd steps, for means and variances
  const int cols = static_cast<int>(task.cols);
  const float count = static_cast<float>(cols);
  const Elements gamma_vector = elements(task.gamma), beta_vector = elements(task.beta), x_rows = elements(task.x);
  const RowRing ring(slots, full, stages, static_cast<unsigned>(cols * sizeof(typename Element<Type>::Storage)));
  ring.open();
  const auto row_at = [&](int index) { return blockIdx.x + static_cast<std::int64_t>(index) * gridDim.x; };
  const auto fetch = [&](int index) {
    if (threadIdx.x != 0 || row_at(index) >= task.rows) return;
    const std::byte* const rows[1] = {row_of<Type>(x_rows, row_at(index))};
    ring.fetch(index, rows);
  };
  for (int index = 0; index < stages; ++index) fetch(index);

  float gamma[Runs * Adjacent][kSumRun], beta[Centred ? Runs * Adjacent : 1][kSumRun] = {};
  read_vector<Adjacent>(gamma_vector, cols, gamma);
  const bool shifts = Centred && beta_vector.data != nullptr;
  if constexpr (Centred)
    if (shifts) read_vector<Adjacent>(beta_vector, cols, beta);
  writer.begin();
  const auto process = [&]<int Rows>(std::integral_constant<int, Rows>, int index, int step) {
    KeptRow<Type, Runs, Adjacent> kept[Rows];
#pragma unroll
    for (int k = 0; k < Rows; ++k) kept[k].read(ring.wait(index + k), cols);
    // The slots are free once every thread has passed the next barrier of the block.
    const auto fetch_after_barrier = [&] {
#pragma unroll
      for (int k = 0; k < Rows; ++k) fetch(index + k + stages);
    };
    float mean[Rows] = {}, rstd[Rows];
    if constexpr (Centred) {
      sum_rows(kept, cols, shared[step & 1][0], mean, [](float x, int) { return x; });
#pragma unroll
      for (int k = 0; k < Rows; ++k) mean[k] /= count;
      fetch_after_barrier();
    }
    sum_rows(kept, cols, shared[step & 1][1], rstd, [&](float x, int k) { return (x - mean[k]) * (x - mean[k]); });
    if constexpr (!Centred) fetch_after_barrier();
#pragma unroll
    for (int k = 0; k < Rows; ++k) {
      rstd[k] = 1.0f / sqrtf(rstd[k] / count + task.epsilon);
      const std::int64_t row = row_at(index + k);
      float values[Adjacent][kSumRun];
      for_runs<Runs, Adjacent>(cols, [&](int i, int col) {
        float(&run)[kSumRun] = values[i % Adjacent];
        kept[k].get(i, run);
#pragma unroll
        for (int j = 0; j < kSumRun; ++j) {
          run[j] = (run[j] - mean[k]) * rstd[k] * gamma[i][j];
          if constexpr (Centred)
            if (shifts) run[j] += beta[i][j];
        }
        if constexpr (Adjacent == 1)
          writer.write(run, row, col);
        else if (i % Adjacent == Adjacent - 1)
          writer.write(values, row, col - kSumRun);
      });
      if (threadIdx.x == 0) {
        if constexpr (Centred) task.mean[row * task.mean_stride] = mean[k];
        task.rstd[row * task.rstd_stride] = rstd[k];
      }
    }
  };
  int index = 0, step = 0;
  for (; row_at(index + kRows - 1) < task.rows; index += kRows, ++step)
    process(std::integral_constant<int, kRows>{}, index, step);
  if constexpr (kRows > 1)
    if (row_at(index) < task.rows) process(std::integral_constant<int, 1>{}, index, step);
  writer.finish();
}

/// Created once per GPU: allows the kernel its shared memory and determines its occupancy.
template <bool Centred, DType Type, int Runs, int Adjacent, class Writer>
struct NormKernel {
  static constexpr int kThreads = kSumThreads / Adjacent;
  explicit NormKernel(CudaContext& context)
      : blocks(ring_blocks(reinterpret_cast<const void*>(norm_kernel<Centred, Type, Runs, Adjacent, Writer>), kThreads,
                           context.shared_bytes())) {}
  int blocks;  ///< blocks that a multiprocessor has registers for
};

template <bool Centred, DType Type, int Runs, int Adjacent, class Writer>
void launch_norm_runs(const NormTask& task, const Writer& writer, CudaContext& context) {
  using Kernel = NormKernel<Centred, Type, Runs, Adjacent, Writer>;
  const int blocks = context.kept<Kernel>().blocks;
  const std::size_t row_bytes = static_cast<std::size_t>(task.cols) * size_bytes(Type);
  const int stages = ring_stages(row_bytes, context.shared_bytes());
  const std::size_t ring_bytes = stages * row_bytes;
  const auto fitting = static_cast<std::int64_t>(context.shared_bytes() / (ring_bytes + kRingReserve));
  const std::int64_t resident = (fitting < blocks ? fitting : blocks) * context.multiprocessors();
  const auto grid = static_cast<unsigned>(resident < task.rows ? resident : task.rows);
  norm_kernel<Centred, Type, Runs, Adjacent, Writer>
      <<<grid, Kernel::kThreads, ring_bytes, context.stream()>>>(task, stages, writer);
  cuda_check_launch("norm_kernel");
}

/// For rows that fit in registers and in the ring: keeps_rows(). If the writer takes pairs of runs, rows consist of
/// them.
template <bool Centred, DType Type, class Writer>
void launch_norm(const NormTask& task, const Writer& writer, CudaContext& context) {
  constexpr int kAdjacent = Writer::kTakesPairs ? 2 : 1;
  if (task.cols <= 2 * kSumLanes) return launch_norm_runs<Centred, Type, 2, kAdjacent>(task, writer, context);
  if (task.cols <= 4 * kSumLanes) return launch_norm_runs<Centred, Type, 4, kAdjacent>(task, writer, context);
  launch_norm_runs<Centred, Type, 8, 1>(task, writer, context);  // a thread has no registers for 16 runs
}

}  // namespace fp8lab::cuda

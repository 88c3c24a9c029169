#pragma once

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

// Each block processes rows a grid apart; the ring loads the next rows while it works. If threads have two neighbouring
// runs (`Adjacent`), rows consist of full pairs.
template <bool Centred, DType Type, int Runs, int Adjacent, class Writer>
__global__ void __launch_bounds__(kSumThreads / Adjacent) norm_kernel(const NormTask task, int stages, Writer writer) {
  extern __shared__ __align__(128) std::byte slots[];
  __shared__ std::uint64_t full[kMostStages];
  __shared__ float shared[2][2][kSumWarps];  // sums of even and odd rows, for means and variances
  const int cols = static_cast<int>(task.cols);
  const float count = static_cast<float>(cols);
  const Elements gamma_vector = elements(task.gamma), beta_vector = elements(task.beta), x_rows = elements(task.x);
  const RowRing ring(slots, full, stages, static_cast<unsigned>(cols * sizeof(typename Element<Type>::Storage)));
  ring.open();
  const auto fetch = [&](int index, std::int64_t row) {
    if (threadIdx.x != 0 || row >= task.rows) return;
    const std::byte* const rows[1] = {row_of<Type>(x_rows, row)};
    ring.fetch(index, rows);
  };
  for (int index = 0; index < stages; ++index) fetch(index, blockIdx.x + static_cast<std::int64_t>(index) * gridDim.x);

  float gamma[Runs * Adjacent][kSumRun], beta[Centred ? Runs * Adjacent : 1][kSumRun] = {};
  read_vector<Adjacent>(gamma_vector, cols, gamma);
  const bool shifts = Centred && beta_vector.data != nullptr;
  if constexpr (Centred)
    if (shifts) read_vector<Adjacent>(beta_vector, cols, beta);
  writer.begin();
  int index = 0;
  for (std::int64_t row = blockIdx.x; row < task.rows; row += gridDim.x, ++index) {
    KeptRow<Type, Runs, Adjacent> kept;
    kept.read(ring.wait(index), cols);
    // The slot is free once every thread has passed the next barrier of the block.
    const auto fetch_after_barrier = [&] {
      fetch(index + stages, row + static_cast<std::int64_t>(stages) * gridDim.x);
    };

    float mean = 0.0f;
    if constexpr (Centred) {
      float lanes[Adjacent][kSumRun] = {};
      for_runs<Runs, Adjacent>(cols, [&](int i, int) {
        float x[kSumRun];
        kept.get(i, x);
#pragma unroll
        for (int j = 0; j < kSumRun; ++j) lanes[i % Adjacent][j] += x[j];
      });
      mean = join_block(lanes, shared[index & 1][0]) / count;
      fetch_after_barrier();
    }
    float lanes[Adjacent][kSumRun] = {};
    for_runs<Runs, Adjacent>(cols, [&](int i, int) {
      float x[kSumRun];
      kept.get(i, x);
#pragma unroll
      for (int j = 0; j < kSumRun; ++j) lanes[i % Adjacent][j] += (x[j] - mean) * (x[j] - mean);
    });
    const float variance = join_block(lanes, shared[index & 1][1]) / count;
    if constexpr (!Centred) fetch_after_barrier();
    const float rstd = 1.0f / sqrtf(variance + task.epsilon);
    float values[Adjacent][kSumRun];
    for_runs<Runs, Adjacent>(cols, [&](int i, int col) {
      float(&run)[kSumRun] = values[i % Adjacent];
      kept.get(i, run);
#pragma unroll
      for (int j = 0; j < kSumRun; ++j) {
        run[j] = (run[j] - mean) * rstd * gamma[i][j];
        if constexpr (Centred)
          if (shifts) run[j] += beta[i][j];
      }
      if constexpr (Adjacent == 1)
        writer.write(run, row, col);
      else if (i % Adjacent == Adjacent - 1)
        writer.write(values, row, col - kSumRun);
    });
    if (threadIdx.x == 0) {
      if constexpr (Centred) task.mean[row * task.mean_stride] = mean;
      task.rstd[row * task.rstd_stride] = rstd;
    }
  }
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

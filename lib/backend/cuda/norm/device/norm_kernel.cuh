#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/norm/device/row_warps.cuh"
#include "backend/cuda/norm/norm_task.h"

// Norms of rows that one or several warps keep in registers, with a writer that stores, measures or casts y.
namespace fp8lab::cuda {

/// A writer that stores y.
template <DType Type>
struct StoredRows {
  using Run = Vector<Type, kSumRun>;
  Elements y;

  __device__ void begin() {}
  __device__ static Run keep(const float (&values)[kSumRun]) { return narrow<Type>(values); }
  template <int Runs, class PlaceOf>
  __device__ void write(const Run (&runs)[Runs], const PlaceOf& place_of) const {
#pragma unroll
    for (int i = 0; i < Runs; ++i)
      if (const RunPlace place = place_of(i); place.there) runs[i].store(y.data, y.index(place.row, place.col));
  }
  __device__ void finish() {}
};

/// A vector of a norm in shared memory, in FP32, followed by zeros: first the first four elements of all runs, then the
/// last four, so that neighbouring threads use different banks.
template <int Cols>
class SharedVector {
 public:
  static constexpr int kRuns = Cols / kSumRun;

  __device__ explicit SharedVector(float4* at) : at_(at) {}
  __device__ void fill(const Elements& vector, int cols) const {
    for (int run = static_cast<int>(threadIdx.x); run < kRuns; run += static_cast<int>(blockDim.x)) {
      float v[kSumRun] = {};
      if (run * kSumRun < cols) load_run<kRealTypes>(vector, 0, run * kSumRun, kSumRun, v);
      at_[run] = make_float4(v[0], v[1], v[2], v[3]);
      at_[run + kRuns] = make_float4(v[4], v[5], v[6], v[7]);
    }
  }
  /// The run that begins at column first + distance.
  __device__ void read(int first, int distance, float (&v)[kSumRun]) const {
    const float4* const run = at_ + static_cast<unsigned>(first) / kSumRun + distance / kSumRun;
    const float4 a = run[0], b = run[kRuns];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  }

 private:
  float4* at_;
};

/// Makes the compiler widen the runs again at their next use: FP32 values of all of them would not fit in a thread's
/// registers.
template <class Run, int Count>
__device__ inline void keep_packed(Run (&runs)[Count]) {
#pragma unroll
  for (Run& run : runs)
#pragma unroll
    for (std::uint32_t& word : run.words) asm volatile("" : "+r"(word));
}

/// How many blocks a multiprocessor has registers for, and their threads. If gamma and beta are so long that only one
/// block has shared memory for them, that block has all of the threads.
template <bool Centred, DType Type, int Warps>
struct NormBlocks {
  static constexpr int kMost = Type == DType::kF32 ? 2 : 3;
  static constexpr bool kOne = Centred && Warps == 8;
  static constexpr int kBlocks = kOne ? 1 : kMost, kThreads = kSumThreads * (kOne ? kMost : 1);
  static constexpr int kRows = kThreads / RowWarps<Warps>::kThreads;
};

// A block processes kRows rows at a time, each by its own warps. These do not wait for the other rows' warps, so that
// some load while others compute.
template <bool Centred, DType Type, int Warps, class Writer>
__global__ void __launch_bounds__(NormBlocks<Centred, Type, Warps>::kThreads, NormBlocks<Centred, Type, Warps>::kBlocks)
    norm_kernel(const NormTask task, Writer writer) {
  using Rows = RowWarps<Warps>;
  using Blocks = NormBlocks<Centred, Type, Warps>;
  using Run = Vector<Type, kSumRun>;
  extern __shared__ float4 vectors[];
  // Sums of warps, in even and in odd rows, for means and variances.
  __shared__ float shared[2][2][Blocks::kThreads / 32];
  const int cols = static_cast<int>(task.cols), first_col = Rows::first_col();
  const float count = static_cast<float>(cols);
  const Elements x = elements(task.x);
  const SharedVector<Rows::kCols> gamma(vectors), beta(vectors + Rows::kCols / 4);
  const bool shifts = Centred && task.beta.data != nullptr;
  gamma.fill(elements(task.gamma), cols);
  if constexpr (Centred)
    if (shifts) beta.fill(elements(task.beta), cols);
  writer.begin();
  __syncthreads();
  const auto there = [&](int i) { return first_col + Rows::distance(i) < cols; };
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * Blocks::kRows;
  int parity = 0;
  for (std::int64_t row = blockIdx.x + static_cast<std::int64_t>(gridDim.x) * Rows::index(); row < task.rows;
       row += step, parity ^= 1) {
    const std::byte* const from = x.data + x.index(row, first_col) * kBytesOf<Type>;
    Run runs[Rows::kRuns];  // zeros beyond the end of the row
#pragma unroll
    for (int i = 0; i < Rows::kRuns; ++i) {
      runs[i].zero();
      if (there(i)) runs[i].load(from + Rows::distance(i) * kBytesOf<Type>);
    }
    const auto read = [&](int i, float(&values)[kSumRun]) { widen(runs[i], values); };
    float mean = 0.0f;
    if constexpr (Centred) {
      mean = Rows::sum(shared[parity][0], read, [](int, float v) { return v; }) / count;
      keep_packed(runs);
    }
    const auto squared = [&](int i, float v) {
      const float deviation = v - (Centred && there(i) ? mean : 0.0f);
      return deviation * deviation;
    };
    const float rstd = 1.0f / sqrtf(Rows::sum(shared[parity][1], read, squared) / count + task.epsilon);
    keep_packed(runs);
    typename Writer::Run results[Rows::kRuns];
#pragma unroll
    for (int i = 0; i < Rows::kRuns; ++i) {
      float values[kSumRun], factor[kSumRun], offset[kSumRun];
      widen(runs[i], values);
      gamma.read(first_col, Rows::distance(i), factor);
#pragma unroll
      for (int j = 0; j < kSumRun; ++j) values[j] = (values[j] - mean) * rstd * factor[j];
      if constexpr (Centred)
        if (shifts) {
          beta.read(first_col, Rows::distance(i), offset);
#pragma unroll
          for (int j = 0; j < kSumRun; ++j) values[j] += offset[j];
        }
      results[i] = Writer::keep(values);
    }
    writer.write(results, [&](int i) { return RunPlace{row, first_col + Rows::distance(i), there(i)}; });
    if (Rows::first_thread()) {
      if constexpr (Centred) task.mean[row * task.mean_stride] = mean;
      task.rstd[row * task.rstd_stride] = rstd;
    }
  }
  writer.finish();
}

/// Shared memory for gamma and, with it, beta.
constexpr int norm_vector_bytes(bool centred, int warps) {
  return (centred ? 2 : 1) * warps * kSumLanes * static_cast<int>(sizeof(float));
}

/// Created once per GPU: allows the kernel its shared memory and determines how many blocks run at once.
template <bool Centred, DType Type, int Warps, class Writer>
struct NormKernel {
  static constexpr int kThreads = NormBlocks<Centred, Type, Warps>::kThreads;
  static constexpr int kBytes = norm_vector_bytes(Centred, Warps);

  explicit NormKernel(CudaContext& context) {
    const auto kernel = norm_kernel<Centred, Type, Warps, Writer>;
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
               "cudaFuncSetAttribute");
    int blocks = 0;
    cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, kBytes),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    resident = std::int64_t{blocks} * context.multiprocessors();
  }
  std::int64_t resident = 0;
};

template <bool Centred, DType Type, int Warps, class Writer>
void launch_norm_warps(const NormTask& task, const Writer& writer, CudaContext& context) {
  using Kernel = NormKernel<Centred, Type, Warps, Writer>;
  const std::int64_t resident = context.kept<Kernel>().resident;
  const auto grid = static_cast<unsigned>(task.rows < resident ? task.rows : resident);
  norm_kernel<Centred, Type, Warps, Writer><<<grid, Kernel::kThreads, Kernel::kBytes, context.stream()>>>(task, writer);
  cuda_check_launch("norm_kernel");
}

/// The warps of a row of `cols` columns.
constexpr int norm_warps(std::int64_t cols) {
  return cols <= kSumLanes ? 1 : cols <= 2 * kSumLanes ? 2 : cols <= 4 * kSumLanes ? 4 : 8;
}

/// True if warps can keep the rows of `x`: they consist of full runs, and of no more of them than kernels are
/// instantiated for.
inline bool warps_keep_rows(const MatrixView& x, bool centred, const CudaContext& context) {
  constexpr std::size_t kReserve = 1024;  // what a kernel uses in addition to its vectors
  return x.cols <= RowWarps<8>::kCols && x.cols % kSumRun == 0 && holds_runs(x) &&
         static_cast<std::size_t>(norm_vector_bytes(centred, norm_warps(x.cols))) + kReserve <= context.shared_bytes();
}

/// For rows that warps_keep_rows() accepts.
template <bool Centred, DType Type, class Writer>
void launch_norm(const NormTask& task, const Writer& writer, CudaContext& context) {
  switch (norm_warps(task.cols)) {
    case 1: return launch_norm_warps<Centred, Type, 1>(task, writer, context);
    case 2: return launch_norm_warps<Centred, Type, 2>(task, writer, context);
    case 4: return launch_norm_warps<Centred, Type, 4>(task, writer, context);
    default: return launch_norm_warps<Centred, Type, 8>(task, writer, context);
  }
}

}  // namespace fp8lab::cuda

#include <algorithm>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/column_parts.h"
#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/kernels.h"

namespace fp8lab::cuda {
namespace {

constexpr int kMostGroups = 16;  // there are at most 256 parts
constexpr int kUnrolledRows = 8;

/// Columns that a thread adds.
template <bool Runs, int Type>
constexpr int kRunOf = Runs ? kVectorWidth<Type> : 1;

/// Adds rows first ... end - 1 of the run of columns that begins at `col`.
template <bool Runs, int Type, int Width>
__device__ inline void add_rows(const Elements& in, std::int64_t first, std::int64_t end, std::int64_t col,
                                std::int64_t cols, float (&sum)[Width]) {
  std::int64_t row = first;
  if constexpr (Runs) {
    if (col + Width <= cols)
      for (; row + kUnrolledRows <= end; row += kUnrolledRows) {
        Vector<Type> stored[kUnrolledRows];
#pragma unroll
        for (int i = 0; i < kUnrolledRows; ++i) stored[i].load(in.data, in.index(row + i, col), in.dtype);
#pragma unroll
        for (int i = 0; i < kUnrolledRows; ++i) {
          float values[Width];
          widen(stored[i], values, in.dtype);
#pragma unroll
          for (int j = 0; j < Width; ++j) sum[j] += values[j];
        }
      }
  }
  for (; row < end; ++row) {
    float values[Width];
    load_run<Type, false>(in, row, col, cols - col, values);
#pragma unroll
    for (int j = 0; j < Width; ++j) sum[j] += values[j];
  }
}

// Each warp of a block adds one part of a strip of columns, and the block then adds its group of parts. The last of a
// strip's blocks adds the groups, since a second kernel would take longer to start than this takes. `arrived` is zero
// for each strip, before and after the launch.
template <bool Runs, int Type>
__global__ void __launch_bounds__(32 * kPartsInGroup, 2)
    column_sum_kernel(const Elements in, std::int64_t rows, std::int64_t cols, std::int64_t part_rows, float* groups,
                      unsigned* arrived, const Elements out) {
  constexpr int kWidth = kRunOf<Runs, Type>, kStrip = 32 * kWidth;
  __shared__ float parts[kPartsInGroup][kStrip];
  __shared__ bool last;
  const int warp = static_cast<int>(threadIdx.x / 32), of_strip = static_cast<int>(threadIdx.x % 32) * kWidth;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.x) * kStrip, col = first_col + of_strip;
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.y) * kPartsInGroup + warp) * part_rows;
  const std::int64_t end = first + part_rows < rows ? first + part_rows : rows;
  float sum[kWidth] = {};
  if (col < cols) add_rows<Runs, Type>(in, first, end, col, cols, sum);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) parts[warp][of_strip + j] = sum[j];
  __syncthreads();
  const std::int64_t own = first_col + threadIdx.x;  // the column whose sum this thread finishes
  const bool finishes = threadIdx.x < kStrip && own < cols;
  float total = 0.0f;
  if (finishes)
#pragma unroll
    for (int i = 0; i < kPartsInGroup; ++i) total += parts[i][threadIdx.x];
  if (gridDim.y > 1) {
    if (finishes) groups[blockIdx.y * cols + own] = total;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(arrived + blockIdx.x, gridDim.y - 1) == gridDim.y - 1;  // wraps to zero
    __syncthreads();
    if (!last) return;
    __threadfence();
    total = 0.0f;
    if (finishes) {
      float values[kMostGroups];
#pragma unroll
      for (int i = 0; i < kMostGroups; ++i) values[i] = i < gridDim.y ? __ldcg(groups + i * cols + own) : 0.0f;
#pragma unroll
      for (int i = 0; i < kMostGroups; ++i) total += values[i];
    }
  }
  const float values[1] = {total};
  if (finishes) store_run<kRealTypes>(values, out, 0, own, 1);
}

// Thread (x, y) adds group y of column x's parts.
__global__ void __launch_bounds__(32 * kMostGroups)
    add_parts_kernel(const float* sums, std::int64_t parts, std::int64_t cols, const Elements out) {
  __shared__ float groups[kMostGroups][32];
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  const std::int64_t first = threadIdx.y * kPartsInGroup;
  float sum = 0.0f;
  if (col < cols) {
    float values[kPartsInGroup];
#pragma unroll
    for (int i = 0; i < kPartsInGroup; ++i) values[i] = first + i < parts ? sums[(first + i) * cols + col] : 0.0f;
#pragma unroll
    for (int i = 0; i < kPartsInGroup; ++i) sum += values[i];
  }
  groups[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  float total = 0.0f;
  for (int group = 0; group * kPartsInGroup < parts; ++group) total += groups[group][threadIdx.x];
  const float values[1] = {total};
  store_run<kRealTypes>(values, out, 0, col, 1);
}

/// Counts that are zero between launches.
class Arrived {
 public:
  explicit Arrived(CudaContext& context) : context_(context) {}

  /// At least `count` of them. The buffer grows as needed, which waits for the GPU, and is kept.
  unsigned* counts(std::size_t count) {
    if (count > count_) {
      context_.synchronize();
      memory_ = context_.allocate(count * sizeof(unsigned));
      count_ = count;
      cuda_check(cudaMemsetAsync(memory_.get(), 0, count * sizeof(unsigned), context_.stream()), "cudaMemsetAsync");
    }
    return reinterpret_cast<unsigned*>(memory_.get());
  }

 private:
  CudaContext& context_;
  DeviceBytes memory_;
  std::size_t count_ = 0;
};

template <bool Runs, int Type>
void launch_column_sum(const MatrixView& in, const MatrixView& out, CudaContext& context) {
  constexpr std::int64_t kStrip = 32 * kRunOf<Runs, Type>;
  const std::int64_t groups = std::max<std::int64_t>((parts_of(in.rows) + kPartsInGroup - 1) / kPartsInGroup, 1);
  const dim3 grid(static_cast<unsigned>((in.cols + kStrip - 1) / kStrip), static_cast<unsigned>(groups));
  unsigned* const arrived = context.kept<Arrived>().counts(grid.x);
  auto* const sums =
      reinterpret_cast<float*>(context.scratch(static_cast<std::size_t>(groups * in.cols) * sizeof(float)));
  column_sum_kernel<Runs, Type><<<grid, 32 * kPartsInGroup, 0, context.stream()>>>(
      elements(in), in.rows, in.cols, rows_in_part(in.rows), sums, arrived, elements(out));
  cuda_check_launch("column_sum_kernel");
}

}  // namespace

void add_parts(const float* sums, std::int64_t parts, const MatrixView& out, CudaContext& context) {
  const dim3 block(32, kMostGroups);
  add_parts_kernel<<<static_cast<unsigned>((out.cols + 31) / 32), block, 0, context.stream()>>>(sums, parts, out.cols,
                                                                                                elements(out));
  cuda_check_launch("add_parts_kernel");
}

void column_sum(const ColumnSumArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  const MatrixView& in = args.in;
  if (in.cols == 0) return;
  if (!holds_runs(in)) return launch_column_sum<false, kRealTypes>(in, args.out, gpu);
  switch (in.dtype) {
    case DType::kF32: return launch_column_sum<true, static_cast<int>(DType::kF32)>(in, args.out, gpu);
    case DType::kBF16: return launch_column_sum<true, static_cast<int>(DType::kBF16)>(in, args.out, gpu);
    default: return launch_column_sum<true, kRealTypes>(in, args.out, gpu);
  }
}

}  // namespace fp8lab::cuda

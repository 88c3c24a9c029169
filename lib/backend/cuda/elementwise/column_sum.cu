#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/column_parts.h"
#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/kernels.h"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnrolledRows = 8;

// A block computes the sums of one part of the rows; each thread sums one run of columns.
template <bool Runs, int Type>
__global__ void __launch_bounds__(kThreads)
    column_part_kernel(const Elements in, std::int64_t rows, std::int64_t cols, std::int64_t part_rows, float* sums) {
  constexpr int kWidth = Runs ? kVectorWidth<Type> : 1;
  const std::int64_t col = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kWidth;
  if (col >= cols) return;
  const std::int64_t first = blockIdx.y * part_rows;
  const std::int64_t end = first + part_rows < rows ? first + part_rows : rows;
  float sum[kWidth] = {};
  std::int64_t row = first;
  if constexpr (Runs) {
    if (col + kWidth <= cols)
      for (; row + kUnrolledRows <= end; row += kUnrolledRows) {
        Vector<Type> stored[kUnrolledRows];
#pragma unroll
        for (int i = 0; i < kUnrolledRows; ++i) stored[i].load(in.data, in.index(row + i, col), in.dtype);
#pragma unroll
        for (int i = 0; i < kUnrolledRows; ++i) {
          float values[kWidth];
          widen(stored[i], values, in.dtype);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) sum[j] += values[j];
        }
      }
  }
  for (; row < end; ++row) {
    float values[kWidth];
    load_run<Type, false>(in, row, col, cols - col, values);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum[j] += values[j];
  }
  float* const out = sums + blockIdx.y * cols + col;
#pragma unroll
  for (int j = 0; j < kWidth; ++j)
    if (col + j < cols) out[j] = sum[j];
}

constexpr int kMostGroups = 16;  // there are at most 256 parts

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

template <bool Runs, int Type>
void launch_column_parts(const MatrixView& in, float* sums, cudaStream_t stream) {
  constexpr std::int64_t kWidth = Runs ? kVectorWidth<Type> : 1;
  const std::int64_t runs = (in.cols + kWidth - 1) / kWidth;
  const unsigned threads = runs < kThreads ? static_cast<unsigned>((runs + 31) / 32 * 32) : kThreads;
  const dim3 grid(static_cast<unsigned>((runs + threads - 1) / threads), static_cast<unsigned>(parts_of(in.rows)));
  column_part_kernel<Runs, Type>
      <<<grid, threads, 0, stream>>>(elements(in), in.rows, in.cols, rows_in_part(in.rows), sums);
  cuda_check_launch("column_part_kernel");
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
  const std::int64_t parts = parts_of(in.rows);
  auto* const sums =
      reinterpret_cast<float*>(gpu.scratch(static_cast<std::size_t>((parts + 1) * in.cols) * sizeof(float)));
  if (parts > 0) {
    if (!holds_runs(in)) {
      launch_column_parts<false, kRealTypes>(in, sums, gpu.stream());
    } else {
      switch (in.dtype) {
        case DType::kF32: launch_column_parts<true, static_cast<int>(DType::kF32)>(in, sums, gpu.stream()); break;
        case DType::kBF16: launch_column_parts<true, static_cast<int>(DType::kBF16)>(in, sums, gpu.stream()); break;
        default: launch_column_parts<true, kRealTypes>(in, sums, gpu.stream()); break;
      }
    }
  }
  add_parts(sums, parts, args.out, gpu);
}

}  // namespace fp8lab::cuda

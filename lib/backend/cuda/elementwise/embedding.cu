#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/column_parts.h"
#include "backend/cuda/device/runs.cuh"
#include "backend/cuda/kernels.h"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kWarpCols = 32 * kRunWidth;  ///< a thread has one run of columns

struct Lookup {
  const std::int32_t* tokens;
  std::int64_t token_stride;
  Elements table;
  float scale;
  Elements positions;  ///< data null: none
  std::int64_t batch;
  Elements out;
  std::int64_t runs;  ///< in all rows
  std::int64_t runs_in_row;
  std::int64_t cols;
};

// Bound by memory: each thread moves one run of 16 bytes.
template <bool Wide, int Type>
__global__ void __launch_bounds__(kThreads) embedding_kernel(const Lookup args) {
  const std::int64_t run = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (run >= args.runs) return;
  const std::int64_t row = run / args.runs_in_row, col = (run - row * args.runs_in_row) * kRunWidth;
  float values[kRunWidth];
  load_run<Type, Wide>(args.table, args.tokens[row * args.token_stride], col, args.cols - col, values);
#pragma unroll
  for (int j = 0; j < kRunWidth; ++j) values[j] *= args.scale;
  if (args.positions.data != nullptr) {
    float position[kRunWidth];
    load_run<Type, Wide>(args.positions, row / args.batch, col, args.cols - col, position);
#pragma unroll
    for (int j = 0; j < kRunWidth; ++j) values[j] += position[j];
  }
  store_run<Type, Wide>(values, args.out, row, col, args.cols - col);
}

template <bool Wide, int Type>
void launch_lookup(const Lookup& args, CudaContext& context) {
  const auto blocks = static_cast<unsigned>((args.runs + kThreads - 1) / kThreads);
  embedding_kernel<Wide, Type><<<blocks, kThreads, 0, context.stream()>>>(args);
  cuda_check_launch("embedding_kernel");
}

/// A row with its token in the high half: sorted only by the token, rows of a token stay in order.
using TokenAndRow = std::uint64_t;

__global__ void __launch_bounds__(kThreads)
    pair_rows_kernel(const std::int32_t* tokens, std::int64_t stride, std::int64_t rows, TokenAndRow* pairs) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row < rows)
    pairs[row] = static_cast<TokenAndRow>(static_cast<std::uint32_t>(tokens[row * stride])) << 32 |
                 static_cast<TokenAndRow>(row);
}

struct RowSums {
  float scale;
  Elements grad_out;
  const TokenAndRow* sorted;  ///< null: entry v has rows v * batch ... v * batch + batch - 1
  std::int64_t rows;
  std::int64_t batch;
  Elements table;
  std::int64_t cols;
  bool accumulate;
};

/// The rows of one entry.
struct EntryRows {
  const TokenAndRow* sorted;
  std::int64_t entry;
  std::int64_t first;
  std::int64_t count;

  __device__ std::int64_t operator[](std::int64_t k) const {
    return sorted == nullptr ? first + k : static_cast<std::int64_t>(static_cast<std::uint32_t>(sorted[first + k]));
  }
};

/// The entry whose rows begin at `first` of the sorted ones; without rows if `first` is not where an entry begins.
__device__ EntryRows rows_from(const RowSums& args, std::int64_t first) {
  if (args.sorted == nullptr)
    return {.sorted = nullptr, .entry = first, .first = first * args.batch, .count = args.batch};
  const TokenAndRow token = args.sorted[first] >> 32;
  EntryRows found{.sorted = args.sorted, .entry = static_cast<std::int64_t>(token), .first = first, .count = 0};
  if (first > 0 && args.sorted[first - 1] >> 32 == token) return found;
  // Most tokens occur a few times, so the search for the end starts near: `inside` has the token, `beyond` has not.
  std::int64_t inside = first, beyond = first + 1;
  for (std::int64_t step = 1; beyond < args.rows && args.sorted[beyond] >> 32 == token; step *= 2) {
    inside = beyond;
    beyond = beyond + step < args.rows ? beyond + step : args.rows;
  }
  while (beyond - inside > 1) {
    const std::int64_t middle = (inside + beyond) / 2;
    (args.sorted[middle] >> 32 == token ? inside : beyond) = middle;
  }
  found.count = beyond - first;
  return found;
}

/// The sum of rows [begin, end) of an entry over a thread's run of columns.
template <bool Wide, int Type>
__device__ void sum_rows(const RowSums& args, const EntryRows& rows, std::int64_t begin, std::int64_t end,
                         std::int64_t col, float (&sum)[kRunWidth]) {
  constexpr int kUnroll = 4;  // loads in flight
#pragma unroll
  for (int j = 0; j < kRunWidth; ++j) sum[j] = 0.0f;
  std::int64_t k = begin;
  for (; k + kUnroll <= end; k += kUnroll) {
    float values[kUnroll][kRunWidth];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) load_run<Type, Wide>(args.grad_out, rows[k + u], col, args.cols - col, values[u]);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int j = 0; j < kRunWidth; ++j) sum[j] += values[u][j];
  }
  for (; k < end; ++k) {
    float values[kRunWidth];
    load_run<Type, Wide>(args.grad_out, rows[k], col, args.cols - col, values);
#pragma unroll
    for (int j = 0; j < kRunWidth; ++j) sum[j] += values[j];
  }
}

// A block sums the rows of one entry over kWarps times kWarpCols columns, in the order of sums over columns
// (core/sum_order.h). If its rows are one part, each warp sums other columns; otherwise the warps sum the parts of a
// group of the same columns side by side. Nothing is added atomically.
template <bool Wide, int Type>
__global__ void __launch_bounds__(kThreads) embedding_gradient_kernel(const RowSums args) {
  __shared__ float sums[kPartsInGroup][kWarpCols];
  const EntryRows rows = rows_from(args, blockIdx.x);
  if (rows.count == 0) return;
  const int warp = static_cast<int>(threadIdx.x / 32), run = static_cast<int>(threadIdx.x % 32) * kRunWidth;
  const std::int64_t first_col = static_cast<std::int64_t>(blockIdx.y) * kWarps * kWarpCols;
  const std::int64_t height = rows_in_part(rows.count), parts = (rows.count + height - 1) / height;
  if (parts == 1) {
    const std::int64_t col = first_col + warp * kWarpCols + run;
    if (col >= args.cols) return;
    float sum[kRunWidth];
    sum_rows<Wide, Type>(args, rows, 0, rows.count, col, sum);
#pragma unroll
    for (int j = 0; j < kRunWidth; ++j) sum[j] *= args.scale;
    if (args.accumulate) {
      float before[kRunWidth];
      load_run<Type, Wide>(args.table, rows.entry, col, args.cols - col, before);
#pragma unroll
      for (int j = 0; j < kRunWidth; ++j) sum[j] += before[j];
    }
    return store_run<Type, Wide>(sum, args.table, rows.entry, col, args.cols - col);
  }
  for (int chunk = 0; chunk < kWarps; ++chunk) {
    const std::int64_t chunk_col = first_col + chunk * kWarpCols;
    if (chunk_col >= args.cols) return;
    float total = 0.0f;  // sum of the thread's single column
    for (std::int64_t group = 0; group < parts; group += kPartsInGroup) {
      const int in_group = static_cast<int>(parts - group < kPartsInGroup ? parts - group : kPartsInGroup);
      for (int part = warp; part < in_group; part += kWarps) {
        const std::int64_t begin = (group + part) * height;
        const std::int64_t end = begin + height < rows.count ? begin + height : rows.count;
        float sum[kRunWidth] = {};
        if (chunk_col + run < args.cols) sum_rows<Wide, Type>(args, rows, begin, end, chunk_col + run, sum);
#pragma unroll
        for (int j = 0; j < kRunWidth; ++j) sums[part][run + j] = sum[j];
      }
      __syncthreads();
      float sum = 0.0f;
      for (int part = 0; part < in_group; ++part) sum += sums[part][threadIdx.x];
      total += sum;
      __syncthreads();
    }
    const std::int64_t col = chunk_col + threadIdx.x;
    if (col >= args.cols) continue;
    float value[1] = {total * args.scale};
    if (args.accumulate) {
      float before[1];
      load_run<Type, false>(args.table, rows.entry, col, 1, before);
      value[0] += before[0];
    }
    store_run<Type, false>(value, args.table, rows.entry, col, 1);
  }
}
static_assert(kWarpCols == kThreads, "a thread adds up the parts of one column");

template <bool Wide, int Type>
void launch_row_sums(const RowSums& args, CudaContext& context) {
  const std::int64_t blocks = args.sorted != nullptr ? args.rows : args.rows / args.batch;
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>((args.cols + kWarps * kWarpCols - 1) / (kWarps * kWarpCols)));
  embedding_gradient_kernel<Wide, Type><<<grid, kThreads, 0, context.stream()>>>(args);
  cuda_check_launch("embedding_gradient_kernel");
}

/// The rows sorted by token, in scratch memory.
const TokenAndRow* sorted_rows(const MatrixView& tokens, std::int64_t vocabulary, CudaContext& context) {
  const std::int64_t rows = tokens.rows;
  const int end_bit = 32 + static_cast<int>(std::bit_width(static_cast<std::uint64_t>(vocabulary)));
  const auto sort = [&](void* temporary, std::size_t& bytes, const TokenAndRow* in, TokenAndRow* out) {
    cuda_check(cub::DeviceRadixSort::SortKeys(temporary, bytes, in, out, rows, 32, end_bit, context.stream()),
               "cub::DeviceRadixSort::SortKeys");
  };
  std::size_t temporary_bytes = 0;
  sort(nullptr, temporary_bytes, nullptr, nullptr);
  const std::size_t pairs_bytes = (static_cast<std::size_t>(rows) * sizeof(TokenAndRow) + 255) / 256 * 256;
  std::byte* const scratch = context.scratch(2 * pairs_bytes + temporary_bytes);
  auto* const pairs = reinterpret_cast<TokenAndRow*>(scratch);
  auto* const sorted = reinterpret_cast<TokenAndRow*>(scratch + pairs_bytes);
  pair_rows_kernel<<<static_cast<unsigned>((rows + kThreads - 1) / kThreads), kThreads, 0, context.stream()>>>(
      reinterpret_cast<const std::int32_t*>(tokens.data), tokens.row_stride, rows, pairs);
  cuda_check_launch("pair_rows_kernel");
  sort(scratch + 2 * pairs_bytes, temporary_bytes, pairs, sorted);
  return sorted;
}

/// Calls launch<Wide, Type>() for matrices of these types.
template <class Launch>
void dispatch(DType type, bool one_type, bool wide, const Launch& launch) {
  if (!wide) return launch.template operator()<false, kRealTypes>();
  if (one_type && type == DType::kBF16) return launch.template operator()<true, static_cast<int>(DType::kBF16)>();
  if (one_type && type == DType::kF32) return launch.template operator()<true, static_cast<int>(DType::kF32)>();
  launch.template operator()<true, kRealTypes>();
}

}  // namespace

void embedding_forward(const EmbeddingForwardArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  const MatrixView& out = args.out;
  if (out.numel() == 0) return;
  const std::int64_t runs_in_row = (out.cols + kRunWidth - 1) / kRunWidth;
  const Lookup lookup{.tokens = reinterpret_cast<const std::int32_t*>(args.tokens.data),
                      .token_stride = args.tokens.row_stride,
                      .table = elements(args.table),
                      .scale = args.scale,
                      .positions = elements(args.positions),
                      .batch = args.batch,
                      .out = elements(out),
                      .runs = out.rows * runs_in_row,
                      .runs_in_row = runs_in_row,
                      .cols = out.cols};
  const bool has_positions = args.positions.data != nullptr;
  const bool one_type = args.table.dtype == out.dtype && (!has_positions || args.positions.dtype == out.dtype);
  const bool wide = holds_runs(args.table) && holds_runs(out) && (!has_positions || holds_runs(args.positions));
  dispatch(out.dtype, one_type, wide, [&]<bool Wide, int Type>() { launch_lookup<Wide, Type>(lookup, gpu); });
}

void embedding_backward(const EmbeddingBackwardArgs& args, ExecContext& context) {
  CudaContext& gpu = cuda_context(context);
  const MatrixView& grad = args.grad_out;
  const MatrixView& table = args.grad_table;
  if (!args.accumulate) fill({.out = table, .value = 0.0f}, context);
  if (grad.numel() == 0) return;
  const RowSums sums{.scale = args.scale,
                     .grad_out = elements(grad),
                     .sorted = args.tokens.data != nullptr ? sorted_rows(args.tokens, table.rows, gpu) : nullptr,
                     .rows = grad.rows,
                     .batch = args.batch,
                     .table = elements(table),
                     .cols = grad.cols,
                     .accumulate = args.accumulate};
  dispatch(table.dtype, grad.dtype == table.dtype, holds_runs(grad) && holds_runs(table),
           [&]<bool Wide, int Type>() { launch_row_sums<Wide, Type>(sums, gpu); });
}

}  // namespace fp8lab::cuda

#pragma once

#include <array>
#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/runs.cuh"

// Operations as in map.cuh, over rows in bf16, whose results go to a writer (QuantizedRows, MeasuredRows) that may do
// more than store them.
namespace fp8lab::cuda {

inline constexpr int kRowMapThreads = 256;

template <int Inputs>
struct RowMapArgs {
  Elements in[Inputs];
  std::int64_t rows;
  std::int64_t cols;
};

// A block processes `Rows` rows; each thread reads its runs of all of them at once. Output k is written in the columns
// after the columns of output k - 1.
template <int Inputs, int Outputs, int Rows, class Op, class Writer>
__global__ void __launch_bounds__(kRowMapThreads)
    row_map_kernel(const RowMapArgs<Inputs> args, const Op op, Writer writer) {
  const std::int64_t col = (static_cast<std::int64_t>(blockIdx.x) * kRowMapThreads + threadIdx.x) * kRunWidth;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * Rows;
  writer.begin();
  if (col < args.cols) {
    Vector<DType::kBF16> stored[Rows][Inputs];
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      // Rows beyond the end read the last row again, so that no load depends on a branch.
      const std::int64_t row = first + i < args.rows ? first + i : args.rows - 1;
#pragma unroll
      for (int k = 0; k < Inputs; ++k) stored[i][k].load(args.in[k].data, args.in[k].index(row, col));
    }
    typename Writer::Run results[Outputs][Rows];
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
      float in[Inputs][kRunWidth], out[Outputs][kRunWidth];
#pragma unroll
      for (int k = 0; k < Inputs; ++k) widen(stored[i][k], in[k]);
      op(in, out, first + i, col);
#pragma unroll
      for (int k = 0; k < Outputs; ++k) results[k][i] = Writer::keep(out[k]);
    }
#pragma unroll
    for (int k = 0; k < Outputs; ++k)
      writer.write(results[k], [&](int i) { return RunPlace{first + i, k * args.cols + col, first + i < args.rows}; });
  }
  writer.finish();
}

/// Rows per block, chosen to keep about eight runs of a thread in flight.
template <int Inputs>
inline constexpr int kRowMapRows = Inputs < 3 ? 4 : 2;

/// True if the kernel accepts inputs of this shape, which must all be bf16.
template <int Inputs>
bool maps_rows(const std::array<MatrixView, Inputs>& inputs) {
  constexpr std::int64_t kMostRows = 65535 * std::int64_t{kRowMapRows<Inputs>};  // most rows that a grid covers
  bool takes =
      inputs[0].rows > 0 && inputs[0].rows <= kMostRows && inputs[0].cols % kRunWidth == 0 && inputs[0].cols > 0;
  for (const MatrixView& view : inputs) takes = takes && view.dtype == DType::kBF16 && holds_runs(view);
  return takes;
}

/// Runs the operation on inputs that maps_rows() accepts. The writer gets `Outputs` matrices of the inputs' shape, side
/// by side.
template <int Inputs, int Outputs, class Op, class Writer>
void map_rows(const std::array<MatrixView, Inputs>& inputs, const Op& op, const Writer& writer, CudaContext& context) {
  constexpr int kRows = kRowMapRows<Inputs>, kBlockCols = kRowMapThreads * kRunWidth;
  RowMapArgs<Inputs> args{.in = {}, .rows = inputs[0].rows, .cols = inputs[0].cols};
  for (int k = 0; k < Inputs; ++k) args.in[k] = elements(inputs[static_cast<std::size_t>(k)]);
  const dim3 grid(static_cast<unsigned>((args.cols + kBlockCols - 1) / kBlockCols),
                  static_cast<unsigned>((args.rows + kRows - 1) / kRows));
  row_map_kernel<Inputs, Outputs, kRows><<<grid, kRowMapThreads, 0, context.stream()>>>(args, op, writer);
  cuda_check_launch("row_map_kernel");
}

}  // namespace fp8lab::cuda

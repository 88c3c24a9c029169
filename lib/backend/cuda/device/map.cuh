#pragma once

#include <array>
#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/runs.cuh"

// Element-wise kernels: an operation over runs, for matrices of any types and strides.
namespace fp8lab::cuda {

template <int Inputs, int Outputs, class Op>
struct MapArgs {
  Elements in[Inputs > 0 ? Inputs : 1];
  Elements out[Outputs];
  std::int64_t rows;
  std::int64_t cols;
  Op op;
};

inline constexpr int kMapThreads = 256;

// Every thread reads its runs before it writes, so outputs may be inputs. `Runs`: all matrices hold wide runs
// (holds_runs()).
template <bool Runs, int Unroll, int Type, int Inputs, int Outputs, class Op>
__global__ void __launch_bounds__(kMapThreads) map_kernel(const MapArgs<Inputs, Outputs, Op> args) {
  constexpr int kIn = Inputs > 0 ? Inputs : 1;
  constexpr int kWidth = Runs ? kVectorWidth<Type> : 1;
  const std::int64_t step = static_cast<std::int64_t>(blockDim.x) * kWidth;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * Unroll * step + threadIdx.x * kWidth;
  const std::int64_t row_step = static_cast<std::int64_t>(gridDim.y) * blockDim.y;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y; row < args.rows;
       row += row_step) {
    if constexpr (Runs) {
      if (first + (Unroll - 1) * step + kWidth <= args.cols) {
        Vector<Type> stored[Unroll][kIn];
#pragma unroll
        for (int u = 0; u < Unroll; ++u)
#pragma unroll
          for (int k = 0; k < Inputs; ++k)
            stored[u][k].load(args.in[k].data, args.in[k].index(row, first + u * step), args.in[k].dtype);
#pragma unroll
        for (int u = 0; u < Unroll; ++u) {
          float in[kIn][kWidth], out[Outputs][kWidth];
#pragma unroll
          for (int k = 0; k < Inputs; ++k) widen(stored[u][k], in[k], args.in[k].dtype);
          args.op(in, out, row, first + u * step);
#pragma unroll
          for (int k = 0; k < Outputs; ++k) store_vector<Type>(out[k], args.out[k], row, first + u * step);
        }
        continue;
      }
    }
#pragma unroll 1
    for (int u = 0; u < Unroll; ++u) {
      const std::int64_t col = first + u * step;
      if (col >= args.cols) break;
      float in[kIn][kWidth], out[Outputs][kWidth];
#pragma unroll
      for (int k = 0; k < Inputs; ++k) load_run<Type, false>(args.in[k], row, col, args.cols - col, in[k]);
      args.op(in, out, row, col);
#pragma unroll
      for (int k = 0; k < Outputs; ++k) store_run<Type, false>(out[k], args.out[k], row, col, args.cols - col);
    }
  }
}

template <bool Runs, int Unroll, int Type, int Inputs, int Outputs, class Op>
void launch_map(const MapArgs<Inputs, Outputs, Op>& args, cudaStream_t stream) {
  constexpr std::int64_t kMostGridRows = 65535;
  constexpr std::int64_t kWidth = Runs ? kVectorWidth<Type> : 1;
  const std::int64_t runs = (args.cols + kWidth - 1) / kWidth;
  // Threads along a row. Short rows share a block. Blocks end with the row if possible, since the remainder of a row
  // is read element by element.
  unsigned across = 1;
  while (across < kMapThreads && across * Unroll < runs) across *= 2;
  for (unsigned even = across; args.rows > 1 && even >= 32; even /= 2)
    if (runs % (even * Unroll) == 0) {
      across = even;
      break;
    }
  const dim3 block(across, kMapThreads / across);
  const std::int64_t row_groups = (args.rows + block.y - 1) / block.y;
  const dim3 grid(static_cast<unsigned>((runs + std::int64_t{across} * Unroll - 1) / (std::int64_t{across} * Unroll)),
                  static_cast<unsigned>(row_groups < kMostGridRows ? row_groups : kMostGridRows));
  map_kernel<Runs, Unroll, Type, Inputs, Outputs, Op><<<grid, block, 0, stream>>>(args);
  cuda_check_launch("map_kernel");
}

/// Calls op(in, out, row, col) for runs of FP32 values in[Inputs][Width] that begin at (row, col), and stores
/// out[Outputs][Width]. All matrices have the shape of outputs[0]. If all are contiguous, they are treated as one long
/// row, unless `flatten` is false: `row` is 0 and `col` is the element's index. Runs are wide if each matrix holds wide
/// runs, else single elements. `Mixed`: the types that may occur, kRealTypes or kAnyTypes.
template <int Inputs, int Outputs, int Mixed = kRealTypes, class Op>
void map(const std::array<MatrixView, Inputs>& inputs, const std::array<MatrixView, Outputs>& outputs, const Op& op,
         CudaContext& context, bool flatten = true) {
  MapArgs<Inputs, Outputs, Op> args{.in = {}, .out = {}, .rows = outputs[0].rows, .cols = outputs[0].cols, .op = op};
  if (args.rows == 0 || args.cols == 0) return;
  bool contiguous = flatten, runs = true, same_type = true;
  const auto see = [&](const MatrixView& view) {
    contiguous = contiguous && view.contiguous();
    runs = runs && holds_runs(view);
    same_type = same_type && view.dtype == outputs[0].dtype;
  };
  for (const MatrixView& view : inputs) see(view);
  for (const MatrixView& view : outputs) see(view);
  for (int k = 0; k < Inputs; ++k) args.in[k] = elements(inputs[static_cast<std::size_t>(k)]);
  for (int k = 0; k < Outputs; ++k) args.out[k] = elements(outputs[static_cast<std::size_t>(k)]);
  if (contiguous) {
    args.cols *= args.rows;
    args.rows = 1;
    for (Elements& matrix : args.in) matrix.col_stride = 1;
    for (Elements& matrix : args.out) matrix.col_stride = 1;
    // For one long row only the alignment of its beginning matters.
    const auto aligned = [](const MatrixView& view) {
      return reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(run_alignment(view.dtype)) == 0;
    };
    runs = true;
    for (const MatrixView& view : inputs) runs = runs && aligned(view);
    for (const MatrixView& view : outputs) runs = runs && aligned(view);
  }
  constexpr int kUnroll = Inputs <= 1 ? 4 : 2;
  if (!runs) return launch_map<false, 1, Mixed>(args, context.stream());
  if (same_type && outputs[0].dtype == DType::kBF16)
    return launch_map<true, kUnroll, static_cast<int>(DType::kBF16)>(args, context.stream());
  if (same_type && outputs[0].dtype == DType::kF32)
    return launch_map<true, kUnroll, static_cast<int>(DType::kF32)>(args, context.stream());
  launch_map<true, 2, Mixed>(args, context.stream());
}

}  // namespace fp8lab::cuda

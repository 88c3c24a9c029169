#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device/quantized_rows.cuh"
#include "core/elementary.h"

namespace fp8lab::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 4;  // of a block, read all at once

struct Source {
  std::byte* x;
  std::int64_t row_stride;
  std::int64_t rows;
  std::int64_t cols;  ///< of y
};

template <bool Gated, int Block>
__global__ void __launch_bounds__(kThreads)
    activation_quantize_kernel(const Source source, QuantizedRows<Block> writer) {
  const std::int64_t col = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kRunWidth;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * kRows;
  const Elements x{.data = source.x, .dtype = DType::kBF16, .row_stride = source.row_stride, .col_stride = 1};
  writer.begin();
  if (col < source.cols) {
    using Raw = RawRun<static_cast<int>(DType::kBF16)>;
    Raw gates[kRows], ups[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      // Beyond the end the last row again, so that no load waits for a branch.
      const std::int64_t row = first + i < source.rows ? first + i : source.rows - 1;
      gates[i].load(x, row, col);
      if constexpr (Gated) ups[i].load(x, row, source.cols + col);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i >= source.rows) break;
      float gate[kRunWidth], up[kRunWidth], y[kRunWidth];
      gates[i].get(x, gate);
      if constexpr (Gated) ups[i].get(x, up);
#pragma unroll
      for (int j = 0; j < kRunWidth; ++j) y[j] = Gated ? swiglu(gate[j], up[j]) : gate[j] * gelu_gate(gate[j]);
      writer.write(y, first + i, col);
    }
  }
  writer.finish();
}

template <bool Gated, int Block>
void launch(const Source& source, const RowCast& cast, CudaContext& card) {
  const dim3 grid(static_cast<unsigned>((source.cols + kThreads * kRunWidth - 1) / (kThreads * kRunWidth)),
                  static_cast<unsigned>((source.rows + kRows - 1) / kRows));
  activation_quantize_kernel<Gated, Block><<<grid, kThreads, 0, card.stream()>>>(source, QuantizedRows<Block>(cast));
  cuda_check_launch("activation_quantize_kernel");
}

template <bool Gated>
void launch(const Source& source, std::int64_t block_cols, const RowCast& cast, CudaContext& card) {
  switch (block_cols) {
    case 0: return launch<Gated, 0>(source, cast, card);
    case 32: return launch<Gated, 32>(source, cast, card);
    default: return launch<Gated, 128>(source, cast, card);
  }
}

}  // namespace

bool activation_quantize_rows(const ActivationQuantizeArgs& args, CudaContext& card) {
  constexpr std::int64_t kMostRows = 65535 * std::int64_t{kRows};  // of a grid
  const MatrixView &x = args.activation.x, &y = args.cast.in;
  if (x.dtype != DType::kBF16 || !holds_runs(x) || y.rows > kMostRows) return false;
  const Source source{.x = x.data, .row_stride = x.row_stride, .rows = y.rows, .cols = y.cols};
  const RowCast cast = begin_row_cast(args.cast, card);
  args.activation.kind == ActivationKind::kSwiglu ? launch<true>(source, args.cast.format.block_cols, cast, card)
                                                  : launch<false>(source, args.cast.format.block_cols, cast, card);
  end_row_cast(args.cast, cast, card);
  return true;
}

}  // namespace fp8lab::cuda

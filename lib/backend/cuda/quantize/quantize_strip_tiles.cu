#include "backend/cuda/cuda_check.h"
#include "backend/cuda/quantize/device/quantize_tile.cuh"
#include "backend/cuda/quantize/quantize_types.h"

namespace fp8lab::cuda {
namespace {

using Tile = TileIndex<128, 128>;
constexpr int kWarps = kTileThreads / 32;

/// Blocks along the rows: sixteen lanes hold eight rows of one block, and each pair of lanes computes one row's scale
/// for the others.
template <DType Float8, DType In>
__device__ void quantize_rows(const TileTask& task, const Tile& tile, const PatchPlace& at, const Patch<In>& patch) {
  const unsigned lane = threadIdx.x % 32;
  std::uint32_t largest[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) largest[k] = Magnitudes<In>::folded(patch.rows[k]);
  distribute_largest<8, 16>(largest, Magnitudes<In>::larger);
  const float own = float_scale(task.rule, Magnitudes<In>::unfolded(largest[0]));
  const std::int64_t row = at.row + lane % 16 / 2;
  const ScaleView& scales = task.rowwise.scales;
  if (lane % 2 == 0 && row < task.in.rows)
    reinterpret_cast<float*>(scales.data)[row * scales.row_stride + tile.col * scales.col_stride] = 1.0f / own;

  const RowData out = rowwise_data(task);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float scale = __shfl_sync(0xFFFFFFFFu, own, (lane & 16) | (2 * k));
    out.store(at, k, cast_vector<Float8>(patch.rows[k], scale));
  }
}

template <DType In>
struct ColumnShared {
  TransposedTile transposed;
  alignas(16) std::uint32_t largest[kWarps][16][Vector<In, 8>::kWords];  ///< per warp and per eight columns
  alignas(16) float scales[128];
};

/// Blocks down the columns: a warp holds sixteen rows of all 128 columns.
template <DType Float8, DType In>
__device__ void quantize_columns(const TileTask& task, const Tile& tile, const Patch<In>& patch,
                                 ColumnShared<In>& shared) {
  const unsigned lane = threadIdx.x % 32, across = threadIdx.x % 16, down = threadIdx.x / 16;
  Magnitudes<In> largest;
  largest.zero();
#pragma unroll
  for (int k = 0; k < 8; ++k) largest.raise(patch.rows[k]);
#pragma unroll
  for (int i = 0; i < Vector<In, 8>::kWords; ++i) {
    const std::uint32_t theirs = __shfl_xor_sync(0xFFFFFFFFu, largest.words[i], 16);
    largest.words[i] = Magnitudes<In>::larger(largest.words[i], theirs);
  }
  if (lane < 16) {
#pragma unroll
    for (int i = 0; i < Vector<In, 8>::kWords; ++i) shared.largest[threadIdx.x / 32][across][i] = largest.words[i];
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    constexpr unsigned kPerWord = In == DType::kF32 ? 1 : 2;
    std::uint32_t word = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp)
      word = Magnitudes<In>::larger(word, shared.largest[warp][threadIdx.x / 8][threadIdx.x % 8 / kPerWord]);
    if constexpr (kPerWord == 2) word = threadIdx.x % 2 == 0 ? word & 0xFFFFu : word >> 16;
    const float scale = float_scale(task.rule, Magnitudes<In>::widened(word));
    shared.scales[threadIdx.x] = scale;
    const std::int64_t col = tile.first_col() + threadIdx.x;
    const ScaleView& scales = task.columnwise.scales;
    if (col < task.in.cols)
      reinterpret_cast<float*>(scales.data)[col * scales.row_stride + tile.row * scales.col_stride] = 1.0f / scale;
  }
  __syncthreads();

  // Casts pairs of elements down the columns, so that the quantized data come out transposed.
  Vector<Float8, 8> data[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float scale = shared.scales[8 * across + j];
    const auto scaled = [&](int k) { return patch.rows[k][j] * scale; };
    data[j].words[0] = encode_quad<Float8>(scaled(0), scaled(1), scaled(2), scaled(3));
    data[j].words[1] = encode_quad<Float8>(scaled(4), scaled(5), scaled(6), scaled(7));
  }
  shared.transposed.put(across, down, data);
  __syncthreads();
  shared.transposed.store(task, tile.first_row(), tile.first_col(), tile.inside);
}

template <DType In, DType Float8>
__global__ void __launch_bounds__(kTileThreads) quantize_strip_kernel(const __grid_constant__ TileTask task) {
  const Tile tile(task.in);
  const unsigned across = threadIdx.x % 16, down = threadIdx.x / 16;
  const PatchPlace at{tile.first_row() + 8 * down, tile.first_col() + 8 * across, tile.inside};
  Patch<In> patch;
  patch.load(task, at);
  quantize_rows<Float8>(task, tile, at, patch);
}

template <DType In, DType Float8>
__global__ void __launch_bounds__(kTileThreads) quantize_strip_columns_kernel(const __grid_constant__ TileTask task) {
  __shared__ ColumnShared<In> shared;
  const Tile tile(task.in);
  const unsigned across = threadIdx.x % 16, down = threadIdx.x / 16;
  const PatchPlace at{tile.first_row() + 8 * down, tile.first_col() + 8 * across, tile.inside};
  Patch<In> patch;
  patch.load(task, at);
  if (task.rowwise.values.data != nullptr) quantize_rows<Float8>(task, tile, at, patch);
  quantize_columns<Float8>(task, tile, patch, shared);
}

}  // namespace

void quantize_strip_tiles(const TileTask& task, DType dtype, CudaContext& context) {
  const auto tiles = static_cast<unsigned>(tile_count<128, 128>(task.in));
  for_types(task.in.dtype, dtype, [&]<DType In, DType Float8>() {
    if (task.columnwise.values.data != nullptr)
      quantize_strip_columns_kernel<In, Float8><<<tiles, kTileThreads, 0, context.stream()>>>(task);
    else
      quantize_strip_kernel<In, Float8><<<tiles, kTileThreads, 0, context.stream()>>>(task);
  });
  cuda_check_launch("quantize_strip_kernel");
}

}  // namespace fp8lab::cuda

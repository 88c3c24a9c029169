#include "backend/cuda/cuda_check.h"
#include "backend/cuda/quantize/device/quantize_tile.cuh"
#include "backend/cuda/quantize/quantize_types.h"

namespace fp8lab::cuda {
namespace {

// Four neighbouring lanes hold eight rows of a block. If the columns are cast too, a warp holds 32 rows of 64 columns,
// so that blocks in both directions lie within the warp; otherwise it holds eight rows of 256 columns, which is faster
// for memory.

/// Scales of a tile's rows, collected so that they are written in full sectors of memory.
template <int kRows, int kBlocks>
struct RowScales {
  std::uint8_t bytes[kRows][kBlocks];

  /// Stores the scales; called by a block of kTileThreads threads, after a barrier. The tile's blocks begin with
  /// `first_block`.
  __device__ void store(const TileTask& task, std::int64_t first_row, std::int64_t first_block) const {
    const ScaleView& scales = task.rowwise.scales;
    const std::int64_t blocks = (task.in.cols + 31) / 32;
    for (int i = threadIdx.x; i < kRows * kBlocks; i += kTileThreads) {
      const std::int64_t row = first_row + i / kBlocks, block = first_block + i % kBlocks;
      if (row < task.in.rows && block < blocks)
        reinterpret_cast<std::uint8_t*>(scales.data)[row * scales.row_stride + block * scales.col_stride] =
            bytes[i / kBlocks][i % kBlocks];
    }
  }
};

/// Each of the four lanes computes two rows' scales for the others. `row_scales` points to the scale of the patch's
/// first row in the tile's scales, which have `pitch` scales per row.
template <DType Float8, DType In>
__device__ void quantize_rows(const TileTask& task, const PatchPlace& at, const Patch<In>& patch,
                              std::uint8_t* row_scales, int pitch) {
  const unsigned lane = threadIdx.x % 32;
  std::uint32_t largest[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) largest[k] = Magnitudes<In>::folded(patch.rows[k]);
  distribute_largest<8, 4>(largest, Magnitudes<In>::larger);
  float own[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const std::uint8_t byte = e8m0_scale(task.rule, Magnitudes<In>::unfolded(largest[k]));
    own[k] = e8m0_multiplier(byte);
    row_scales[(2 * (lane % 4) + k) * pitch] = byte;
  }
  const RowData out = rowwise_data(task);
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float scale = __shfl_sync(0xFFFFFFFFu, own[k % 2], (lane & ~3u) | (k / 2));
    out.store(at, k, cast_vector<Float8>(patch.rows[k], scale));
  }
}

constexpr int kRowTileRows = 16;
constexpr int kRowTileCols = 1024;

template <DType In, DType Float8>
__global__ void __launch_bounds__(kTileThreads) quantize_micro_rows_kernel(const __grid_constant__ TileTask task) {
  constexpr int kBlocks = kRowTileCols / 32;
  __shared__ RowScales<kRowTileRows, kBlocks> row_scales;
  const TileIndex<kRowTileRows, kRowTileCols> tile(task.in);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned row = warp / 4 * 8, col = warp % 4 * 256 + 8 * lane;
  const PatchPlace at{tile.first_row() + row, tile.first_col() + col, tile.inside};
  Patch<In> patch;
  patch.load(task, at);
  quantize_rows<Float8>(task, at, patch, &row_scales.bytes[row][col / 32], kBlocks);
  __syncthreads();
  row_scales.store(task, tile.first_row(), tile.first_col() / 32);
}

constexpr int kTileRows = 32;
constexpr int kTileCols = 512;
using Tile = TileIndex<kTileRows, kTileCols>;

/// Four groups of lanes each hold eight of a block's 32 rows; each lane computes the scales of two of its columns for
/// the others.
template <DType Float8, DType In>
__device__ void quantize_columns(const TileTask& task, const Tile& tile, const PatchPlace& at, const Patch<In>& patch) {
  const unsigned lane = threadIdx.x % 32;
  Magnitudes<In> largest;
  largest.zero();
#pragma unroll
  for (int k = 0; k < 8; ++k) largest.raise(patch.rows[k]);
  constexpr int kWords = Vector<In, 8>::kWords;
  // Lanes 16 and then 8 apart exchange half of the words that they hold. The word that remains is number lane / 8 or,
  // for FP32, the pair that begins at twice that.
#pragma unroll
  for (int step = 16, kept = kWords / 2; step >= 8; step /= 2, kept /= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int k = 0; k < kWords / 2; ++k) {
      if (k >= kept) continue;
      const std::uint32_t own = upper ? largest.words[k + kept] : largest.words[k];
      const std::uint32_t theirs = upper ? largest.words[k] : largest.words[k + kept];
      largest.words[k] = Magnitudes<In>::larger(own, __shfl_xor_sync(0xFFFFFFFFu, theirs, step));
    }
  }
  const std::uint8_t first = e8m0_scale(task.rule, largest.of_column(0));
  const std::uint8_t second = e8m0_scale(task.rule, largest.of_column(1));
  const std::int64_t col = at.col + 2 * (lane / 8);
  const ScaleView& scales = task.columnwise.scales;
  std::uint8_t* bytes = reinterpret_cast<std::uint8_t*>(scales.data) + tile.row * scales.col_stride + col;
  if (col < task.in.cols) bytes[0] = first;
  if (col + 1 < task.in.cols) bytes[1] = second;

  float scale[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float own = e8m0_multiplier(j % 2 == 0 ? first : second);
    scale[j] = __shfl_sync(0xFFFFFFFFu, own, (j / 2) * 8 | (lane & 7));
  }
  const MatrixView& data = task.columnwise.values;
  const RowData out{reinterpret_cast<std::uint8_t*>(data.data), data.col_stride, task.in.rows, task.in.cols,
                    task.column_alignment >= 8};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const Vector<In, 8>& x = patch.rows[k];
    const Vector<Float8, 8> row = {
        encode_quad<Float8>(x[0] * scale[0], x[1] * scale[1], x[2] * scale[2], x[3] * scale[3]),
        encode_quad<Float8>(x[4] * scale[4], x[5] * scale[5], x[6] * scale[6], x[7] * scale[7])};
    out.store(at, k, row);
  }
}

template <DType In, DType Float8>
__global__ void __launch_bounds__(kTileThreads, kResidentTiles<In>)
    quantize_micro_kernel(const __grid_constant__ TileTask task) {
  constexpr int kBlocks = kTileCols / 32;
  __shared__ RowScales<kTileRows, kBlocks> row_scales;
  const Tile tile(task.in);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned row = 8 * (lane / 8), col = 64 * warp + 8 * (lane % 8);
  const PatchPlace at{tile.first_row() + row, tile.first_col() + col, tile.inside};
  Patch<In> patch;
  patch.load(task, at);
  quantize_columns<Float8>(task, tile, at, patch);
  if (task.rowwise.values.data == nullptr) return;
  quantize_rows<Float8>(task, at, patch, &row_scales.bytes[row][col / 32], kBlocks);
  __syncthreads();
  row_scales.store(task, tile.first_row(), tile.first_col() / 32);
}

}  // namespace

void quantize_micro_tiles(const TileTask& task, DType dtype, CudaContext& context) {
  for_types(task.in.dtype, dtype, [&]<DType In, DType Float8>() {
    if (task.columnwise.values.data != nullptr) {
      const auto tiles = static_cast<unsigned>(tile_count<kTileRows, kTileCols>(task.in));
      quantize_micro_kernel<In, Float8><<<tiles, kTileThreads, 0, context.stream()>>>(task);
    } else {
      const auto tiles = static_cast<unsigned>(tile_count<kRowTileRows, kRowTileCols>(task.in));
      quantize_micro_rows_kernel<In, Float8><<<tiles, kTileThreads, 0, context.stream()>>>(task);
    }
  });
  cuda_check_launch("quantize_micro_kernel");
}

}  // namespace fp8lab::cuda

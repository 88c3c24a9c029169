#pragma once

#include <cstdint>

#include "backend/cuda/quantize/device/block_scale.cuh"
#include "backend/cuda/quantize/device/vector_cast.cuh"
#include "backend/cuda/quantize/quantize_paths.h"

// A tile of a matrix with contiguous rows, processed by a block of threads: each thread holds a patch of 8 x 8
// elements.
namespace fp8lab::cuda {

inline constexpr int kTileThreads = 256;
/// Blocks that a multiprocessor holds at once; their patches are the data in flight from memory.
template <DType In>
inline constexpr int kResidentTiles = In == DType::kF32 ? 2 : 4;

/// The position of a thread's patch.
struct PatchPlace {
  std::int64_t row;
  std::int64_t col;
  bool inside;  ///< the entire tile lies inside the matrix
};

/// The tile of this block. Tiles of kRows x kCols are processed from the last one to the first: the elements that were
/// written or read last may still be in the L2 cache, so they are read first.
template <int kRows, int kCols>
struct TileIndex {
  unsigned row;
  unsigned col;
  bool inside;

  __device__ explicit TileIndex(const MatrixView& in) {
    const auto across = static_cast<unsigned>((in.cols + kCols - 1) / kCols);
    const unsigned index = gridDim.x - 1 - blockIdx.x;
    row = index / across;
    col = index % across;
    inside = (std::int64_t{row} + 1) * kRows <= in.rows && (std::int64_t{col} + 1) * kCols <= in.cols;
  }
  __device__ std::int64_t first_row() const { return std::int64_t{row} * kRows; }
  __device__ std::int64_t first_col() const { return std::int64_t{col} * kCols; }
};
template <int kRows, int kCols>
std::int64_t tile_count(const MatrixView& in) {
  return (in.rows + kRows - 1) / kRows * ((in.cols + kCols - 1) / kCols);
}

template <DType In>
struct Patch {
  Vector<In, 8> rows[8];

  /// Loads the patch; elements outside of the matrix are zero.
  __device__ void load(const TileTask& task, const PatchPlace& at) {
    constexpr int kBytes = kBytesOf<In>;
    const std::int64_t pitch = task.in.row_stride * kBytes;
    const std::byte* from = task.in.data + at.row * pitch + at.col * kBytes;
    if (at.inside && task.in_vectors) {
#pragma unroll
      for (int k = 0; k < 8; ++k) rows[k].load_read_only(from + k * pitch);
      return;
    }
    const std::int64_t left = task.in.cols - at.col;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (at.row + k >= task.in.rows || left <= 0)
        rows[k].zero();
      else if (task.in_vectors && left >= 8)
        rows[k].load_read_only(from + k * pitch);
      else
        rows[k].load_some(from + k * pitch, static_cast<int>(min(left, std::int64_t{8})));
    }
  }
};

/// The destination of an orientation whose data are stored along the matrix's rows: element (i, j) goes to data[i *
/// pitch + j].
struct RowData {
  std::uint8_t* data;
  std::int64_t pitch;
  std::int64_t rows;
  std::int64_t cols;
  bool vectors;  ///< every eighth element is aligned to eight bytes

  /// Stores row k of a thread's patch.
  template <DType Float8>
  __device__ void store(const PatchPlace& at, int k, const Vector<Float8, 8>& row) const {
    std::uint8_t* to = data + (at.row + k) * pitch + at.col;
    if (vectors && (at.inside || (at.row + k < rows && at.col + 8 <= cols))) {
      row.store(to);
    } else if (at.row + k < rows) {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (at.col + j < cols) to[j] = row.byte(j);
    }
  }
};
__device__ inline RowData rowwise_data(const TileTask& task) {
  return {reinterpret_cast<std::uint8_t*>(task.rowwise.values.data), task.rowwise.values.row_stride, task.in.rows,
          task.in.cols, task.row_vectors};
}

/// Transposes 128 x 128 quantized data in shared memory. Patches are written as columns of eight 8-bit values, at
/// positions permuted so that no two threads access one bank; full rows of the transposed tile are read out.
struct TransposedTile {
  alignas(16) std::uint8_t bytes[128 * 128];

  /// `across` and `down` are the patch's position in the tile, 0 to 15; columns[k] holds rows 8 down ... 8 down + 7 of
  /// column 8 across + k.
  template <DType Float8>
  __device__ void put(int across, int down, const Vector<Float8, 8> (&columns)[8]) {
#pragma unroll
    for (int k = 0; k < 8; ++k) columns[k].store(bytes + (8 * across + k) * 128 + ((down ^ across) * 8));
  }

  /// Stores the tile; called by a block of kTileThreads threads, after a barrier.
  __device__ void store(const TileTask& task, std::int64_t first_row, std::int64_t first_col, bool inside) const {
    auto* const out = reinterpret_cast<std::uint8_t*>(task.columnwise.values.data);
    const std::int64_t pitch = task.columnwise.values.row_stride;
#pragma unroll
    for (int i = 0; i < 128 * 128 / (16 * kTileThreads); ++i) {
      const unsigned piece = i * kTileThreads + threadIdx.x;
      const unsigned col = piece / 8, part = piece % 8, across = col / 8;
      uint4 data = *reinterpret_cast<const uint4*>(bytes + col * 128 + ((part ^ (across / 2)) * 16));
      if (across % 2 != 0) data = make_uint4(data.z, data.w, data.x, data.y);
      const std::int64_t row = first_row + 16 * part;
      std::uint8_t* to = out + (first_col + col) * pitch + row;
      if (!inside && first_col + col >= task.in.cols) continue;
      const bool full = inside || row + 16 <= task.in.rows;
      if (full && task.column_alignment == 16) {
        *reinterpret_cast<uint4*>(to) = data;
      } else if (full && task.column_alignment == 8) {
        *reinterpret_cast<uint2*>(to) = make_uint2(data.x, data.y);
        *reinterpret_cast<uint2*>(to + 8) = make_uint2(data.z, data.w);
      } else {
        const std::uint32_t words[4] = {data.x, data.y, data.z, data.w};
#pragma unroll
        for (int j = 0; j < 16; ++j)
          if (row + j < task.in.rows) to[j] = static_cast<std::uint8_t>(words[j / 4] >> (8 * (j % 4)));
      }
    }
  }
};

/// Computes the maxima of kValues values over kLanes neighbouring lanes and distributes them: each lane keeps kValues /
/// kLanes maxima, at least one. The maximum of value v ends up in lanes (v * kLanes / kValues) and following, in
/// values[v % kept].
template <int kValues, int kLanes, class Larger>
__device__ void distribute_largest(std::uint32_t (&values)[kValues], const Larger& larger) {
  const unsigned lane = threadIdx.x % 32;
  int kept = kValues;
#pragma unroll
  for (int step = kLanes / 2; step >= 1; step /= 2) {
    const bool upper = (lane & step) != 0;
    if (kept > 1) {
      kept /= 2;
#pragma unroll
      for (int k = 0; k < kValues / 2; ++k) {
        if (k >= kept) continue;
        const std::uint32_t own = upper ? values[k + kept] : values[k];
        const std::uint32_t theirs = upper ? values[k] : values[k + kept];
        values[k] = larger(own, __shfl_xor_sync(0xFFFFFFFFu, theirs, step));
      }
    } else {
      values[0] = larger(values[0], __shfl_xor_sync(0xFFFFFFFFu, values[0], step));
    }
  }
}

}  // namespace fp8lab::cuda

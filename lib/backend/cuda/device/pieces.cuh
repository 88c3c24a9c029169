#pragma once

#include <cstdint>

#include "backend/cuda/device/lists.h"

// Which piece of which tensor a block has.
namespace fp8lab::cuda {

/// The item that owns piece `piece`: the first one that ends behind it.
template <class Item>
__device__ __forceinline__ int item_of_piece(const Item* items, int count, std::int64_t piece) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (items[middle].end_piece > piece)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/// Where a thread's vectors lie in a matrix without gaps: elements at[k] ... at[k] + 3, row of_tile + k of a tile.
template <int kTogether>
struct Places {
  std::int64_t at[kTogether];
  bool live[kTogether];
  int of_tile;
};

/// Walks piece `piece` of a rows x cols matrix in vectors: use(places) for every few of them, after_tile(row, col) when
/// a tile has been walked. In row-major order what is left of the last vector remains for the caller; tiles need full
/// ones.
template <int kTogether, class Use, class AfterTile>
__device__ __forceinline__ void walk_vectors(std::int64_t rows, std::int64_t cols, bool tiles, std::int64_t piece,
                                             const Use& use, const AfterTile& after_tile) {
  constexpr int kVectorElements = 4, kVectorsOfTileRow = kListTile / kVectorElements;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t across = (cols + kListTile * kListSteps - 1) / (kListTile * kListSteps);
  const std::int64_t tile_row = tiles ? piece / across * kListTile : 0;
  const std::int64_t first_col = tiles ? piece % across * (kListTile * kListSteps) : 0;
  const std::int64_t full = rows * cols - rows * cols % kVectorElements;
#pragma unroll 1
  for (int step = 0; step < kListSteps; ++step) {
    const std::int64_t first = piece * kListPiece + step * kListStep;
    const std::int64_t tile_col = first_col + step * kListTile;
    if (tiles ? tile_col >= cols : first >= full) break;
#pragma unroll 1
    for (int begin = 0; begin < kListVectors; begin += kTogether) {
      Places<kTogether> places;
      places.of_tile = begin;
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (tiles) {
          const std::int64_t row = tile_row + thread / kVectorsOfTileRow * kListVectors + begin + k;
          const std::int64_t col = tile_col + thread % kVectorsOfTileRow * kVectorElements;
          places.at[k] = row * cols + col;
          places.live[k] = row < rows && col < cols;
        } else {
          places.at[k] = first + ((begin + k) * kListThreads + thread) * kVectorElements;
          places.live[k] = places.at[k] < full;
        }
      }
      use(places);
    }
    if (tiles) after_tile(tile_row, tile_col);
  }
}

/// Elements of piece `piece` that walk_vectors() leaves, one for each thread from the first on: calls use(index).
template <class Use>
__device__ __forceinline__ void walk_rest(std::int64_t rows, std::int64_t cols, std::int64_t piece, const Use& use) {
  const std::int64_t numel = rows * cols, index = numel - numel % 4 + threadIdx.x;
  if (index < numel && index / kListPiece == piece) use(index);
}

/// Element by element.
template <class Use>
__device__ __forceinline__ void walk_elements(std::int64_t rows, std::int64_t cols, std::int64_t piece,
                                              const Use& use) {
  const std::int64_t begin = piece * kListPiece;
  const std::int64_t end = begin + kListPiece < rows * cols ? begin + kListPiece : rows * cols;
#pragma unroll 1
  for (std::int64_t index = begin + threadIdx.x; index < end; index += kListThreads) use(index);
}

/// The largest of the block's values in its first thread. All threads call it.
__device__ __forceinline__ unsigned block_max(unsigned value) {
  __shared__ unsigned of_warps[kListThreads / 32];
  const unsigned of_warp = __reduce_max_sync(0xFFFFFFFFu, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = of_warp;
  __syncthreads();
  unsigned largest = 0;
  if (threadIdx.x == 0)
    for (const unsigned one : of_warps) largest = max(largest, one);
  return largest;
}

}  // namespace fp8lab::cuda

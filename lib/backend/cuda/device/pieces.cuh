#pragma once

#include <cstdint>

#include "backend/cuda/device/lists.h"

// Finds a block's piece of work in a list (lists.h) and walks its elements.
namespace fp8lab::cuda {

/// Index of the item that owns piece `piece`: the first whose end_piece is greater.
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

/// Indices of a thread's vectors in a matrix without gaps: vector k is elements at[k] ... at[k] + 3, in row of_tile + k
/// of the thread's rows of a tile. `live`: it lies inside the matrix.
template <int kTogether>
struct Places {
  std::int64_t at[kTogether];
  bool live[kTogether];
  int of_tile;
};

/// Walks piece `piece` of a rows x cols matrix in vectors: calls use(places) for every kTogether of them, and
/// after_tile(row, col) after each tile. In row-major order the elements that fill no vector remain for walk_rest();
/// tiles need rows of full vectors.
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

/// Calls use(index) for the elements of piece `piece` that walk_vectors() leaves, one per thread from the first thread
/// on.
template <class Use>
__device__ __forceinline__ void walk_rest(std::int64_t rows, std::int64_t cols, std::int64_t piece, const Use& use) {
  const std::int64_t numel = rows * cols, index = numel - numel % 4 + threadIdx.x;
  if (index < numel && index / kListPiece == piece) use(index);
}

/// Calls use(index) for each element of piece `piece`.
template <class Use>
__device__ __forceinline__ void walk_elements(std::int64_t rows, std::int64_t cols, std::int64_t piece,
                                              const Use& use) {
  const std::int64_t begin = piece * kListPiece;
  const std::int64_t end = begin + kListPiece < rows * cols ? begin + kListPiece : rows * cols;
#pragma unroll 1
  for (std::int64_t index = begin + threadIdx.x; index < end; index += kListThreads) use(index);
}

/// The largest of the block's values, returned to its first thread. Must be called by all threads.
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

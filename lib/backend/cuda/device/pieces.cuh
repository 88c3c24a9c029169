#pragma once

#include <cstdint>

#include "backend/cuda/lists.h"

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

/// A stretch of a tensor's elements in row-major order.
struct Stretch {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

template <class Item>
__device__ __forceinline__ Stretch stretch_of(const Item& item, std::int64_t pieces_before, std::int64_t piece, std::int64_t elements) {
  const std::int64_t begin = (piece - pieces_before) * elements;
  const std::int64_t numel = item.rows * item.cols;
  return {begin, begin + elements < numel ? begin + elements : numel};
}

}  // namespace fp8lab::cuda

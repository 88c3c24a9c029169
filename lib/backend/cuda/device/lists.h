#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/shape.h"
#include "tensor/view.h"

// Kernels over lists of tensors: one launch for the entire list. A block finds its piece of work in a table that holds,
// for each tensor, the number of pieces up to its last. The table and the descriptions of the tensors are one array,
// copied to the GPU at once.
namespace fp8lab::cuda {

/// Threads per block, vectors per thread, and elements that a block processes in one step: four vectors of four
/// elements per thread.
inline constexpr int kListThreads = 256;
inline constexpr int kListVectors = 4;
inline constexpr std::int64_t kListStep = std::int64_t{kListThreads} * kListVectors * 4;
/// Steps per piece, and elements per piece.
inline constexpr int kListSteps = 4;
inline constexpr std::int64_t kListPiece = kListSteps * kListStep;
/// If a transpose is written, a step is a square tile with sides of this length, and a piece is a row of tiles.
inline constexpr int kListTile = 64;
static_assert(kListTile * kListTile == kListStep);

/// Strides of a matrix, in elements.
struct Strides {
  std::int64_t row = 0;
  std::int64_t col = 0;
};

inline Strides strides_of(const MatrixView& view) { return {view.row_stride, view.col_stride}; }

/// True if vectors of four elements can be read and written: the matrix is row-major without gaps, and its address is
/// aligned to four elements.
inline bool takes_vectors(const MatrixView& view) {
  return view.contiguous() && reinterpret_cast<std::uintptr_t>(view.data) % (4 * size_bytes(view.dtype)) == 0;
}

/// Number of pieces that rows x cols elements are divided into.
inline std::int64_t pieces_of(std::int64_t rows, std::int64_t cols, bool tiles) {
  if (!tiles) return ceil_div(rows * cols, kListPiece);
  return ceil_div(rows, kListTile) * ceil_div(cols, kListTile * kListSteps);
}

/// The items of one launch over a list, in a buffer that is reused between launches, so that no launch allocates. Item
/// has a member `end_piece`: the number of pieces up to and including its own.
template <class Item>
class PieceList {
 public:
  void clear() { items_.clear(); }
  /// Adds an item; an item without pieces is left out.
  void add(Item item, std::int64_t pieces) {
    if (pieces == 0) return;
    item.end_piece = this->pieces() + pieces;
    items_.push_back(item);
  }
  bool empty() const { return items_.empty(); }
  std::int64_t pieces() const { return items_.empty() ? 0 : items_.back().end_piece; }
  std::span<const Item> items() const { return items_; }

 private:
  std::vector<Item> items_;
};

}  // namespace fp8lab::cuda

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/shape.h"
#include "tensor/view.h"

// Kernels over lists of tensors: one launch, whose blocks find their piece of work in a table of how many pieces there
// are before each tensor. Descriptions of tensors and the table go to the GPU together, in one copy.
namespace fp8lab::cuda {

/// Threads of a block, and elements that a block takes in one step: four vectors of four for each thread.
inline constexpr int kListThreads = 256;
inline constexpr int kListVectors = 4;
inline constexpr std::int64_t kListStep = std::int64_t{kListThreads} * kListVectors * 4;
/// Steps of a piece, and its elements.
inline constexpr int kListSteps = 4;
inline constexpr std::int64_t kListPiece = kListSteps * kListStep;
/// Where a transpose is written a step is a square tile of this side, and a piece a row of tiles.
inline constexpr int kListTile = 64;
static_assert(kListTile * kListTile == kListStep);

/// Where element (row, col) lies.
struct Strides {
  std::int64_t row = 0;
  std::int64_t col = 0;
};

inline Strides strides_of(const MatrixView& view) { return {view.row_stride, view.col_stride}; }

/// True if vectors of four elements can be read and written: memory order is row-major without gaps, and aligned.
inline bool takes_vectors(const MatrixView& view) {
  return view.contiguous() && reinterpret_cast<std::uintptr_t>(view.data) % (4 * size_bytes(view.dtype)) == 0;
}

/// Pieces of rows x cols elements.
inline std::int64_t pieces_of(std::int64_t rows, std::int64_t cols, bool tiles) {
  if (!tiles) return ceil_div(rows * cols, kListPiece);
  return ceil_div(rows, kListTile) * ceil_div(cols, kListTile * kListSteps);
}

/// What a launch over a list sends to the GPU, kept between launches, so that none allocates. An Item has a member
/// `end_piece`: pieces up to its own last one.
template <class Item>
class PieceList {
 public:
  void clear() { items_.clear(); }
  /// Without pieces the item is left out.
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

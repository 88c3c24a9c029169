#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/shape.h"

namespace fp8lab {

/// Split of dim 0 of a parameter over ranks: ceil(rows / ranks) rows each from rank 0 on, so the last ranks may have
/// fewer rows, or none. As by FSDP2, each rank keeps and moves rank 0's number of rows. Those that it does not have are
/// padding; they follow the parameter's rows when all ranks' rows are put together.
class RowSplit {
 public:
  RowSplit() = default;
  RowSplit(std::int64_t rows, int ranks) : rows_(rows), ranks_(ranks), chunk_(ceil_div(rows, ranks)) {}

  std::int64_t rows() const { return rows_; }
  int ranks() const { return ranks_; }
  std::int64_t chunk() const { return chunk_; }
  std::int64_t begin(int rank) const { return std::min(rows_, rank * chunk_); }
  std::int64_t count(int rank) const { return begin(rank + 1) - begin(rank); }
  /// True if all ranks have equally many rows.
  bool even() const { return padded_rows() == rows_; }
  /// The rows of all ranks, padding included.
  std::int64_t padded_rows() const { return chunk_ * ranks_; }

  /// Each rank's first row, and the end.
  std::vector<std::int64_t> bounds() const {
    std::vector<std::int64_t> bounds;
    for (int rank = 0; rank <= ranks_; ++rank) bounds.push_back(begin(rank));
    return bounds;
  }
  /// Offsets of what each rank moves, padding included, and of the end, counted in blocks of `block_rows` rows, times
  /// `unit`.
  std::vector<std::int64_t> padded_offsets(std::int64_t unit, std::int64_t block_rows = 1) const {
    std::vector<std::int64_t> offsets;
    for (int rank = 0; rank <= ranks_; ++rank) offsets.push_back(rank * ceil_div(chunk_, block_rows) * unit);
    return offsets;
  }

 private:
  std::int64_t rows_ = 0;
  int ranks_ = 1;
  std::int64_t chunk_ = 0;
};

/// Dim 0 of a parameter, and the number of elements in each of its rows. A vector has rows of one element.
inline std::int64_t dim0(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[0]; }
inline std::int64_t row_elems(const Shape& shape) {
  std::int64_t elems = 1;
  for (int i = 1; i < shape.rank(); ++i) elems *= shape[i];
  return elems;
}

}  // namespace fp8lab

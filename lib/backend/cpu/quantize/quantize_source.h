#pragma once

#include <cstdint>

#include "backend/cpu/quantize/quantize_loops.h"
#include "tensor/view.h"

namespace fp8lab::cpu {

/// Contiguous elements: BF16 by their bits, or floats; the other pointer is null.
struct Elements {
  const std::uint16_t* bf16 = nullptr;
  const float* f32 = nullptr;
};

/// Rows of any matrix as the inner loops read them: in place where they are contiguous, else copied a few at a time.
/// Values never change. Each thread may have one SourceRows open per `slot` of rows.h.
class SourceRows {
 public:
  /// How many rows to open together.
  static constexpr std::int64_t kBand = 64;

  SourceRows(const MatrixView& matrix, const QuantizeLoops& loops, int slot);

  /// The type of the elements.
  DType dtype() const { return matrix_.dtype; }
  /// True if open() copies nothing.
  bool in_place() const { return access_ == Access::kInPlace; }
  /// Makes rows [row, row + rows) of columns [col, col + cols) readable, and no longer the ones of the last open().
  void open(std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols);
  /// The opened columns of `row`, which must be one of the opened rows.
  Elements operator()(std::int64_t row) const;

 private:
  enum class Access { kInPlace, kTransposed, kConverted };

  MatrixView matrix_;
  const QuantizeLoops& loops_;
  int slot_;
  Access access_;
  std::int64_t first_row_ = 0;
  std::int64_t first_col_ = 0;
  float* copy_ = nullptr;
  std::int64_t copy_stride_ = 0;
};

/// Largest magnitude of a matrix, as the bits of a float; above the bits of Inf if there is a NaN.
std::uint32_t amax_magnitude(const MatrixView& matrix);
/// Stores amax_magnitude() as a float at `amax`, unless that is null.
void measure(const MatrixView& matrix, float* amax);

}  // namespace fp8lab::cpu

#pragma once

#include <cstdint>

#include "backend/kernels.h"
#include "tensor/view.h"

namespace fp8lab::cpu {

/// Casts a matrix's new values, run by run, into its CastTarget.
class TargetWriter {
 public:
  /// `measured`: as in ListCast; may be null.
  TargetWriter(const CastTarget& target, const float* measured);

  /// The quantized data that take() writes, as a matrix of the shape of the values; empty if there are none. If the
  /// caller flattens its matrices, it must flatten this one with them.
  MatrixView& data() { return data_; }
  /// Casts the values of elements (row, col) ... (row, col + count - 1), at most kRun of them, and leaves `values`
  /// rounded to the nominal type.
  void take(float* values, std::int64_t count, std::int64_t row, std::int64_t col);
  /// After all elements: writes the other orientation, the inverse scales and the amax.
  void finish();

 private:
  void cast(const float* values, std::int64_t count, std::uint8_t* data) const;

  CastTarget target_;
  MatrixView data_;
  float scale_ = 1.0f;
  std::uint32_t amax_ = 0;
};

}  // namespace fp8lab::cpu

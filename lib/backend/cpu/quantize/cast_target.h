#pragma once

#include <cstdint>

#include "backend/kernels.h"
#include "tensor/view.h"

namespace fp8lab::cpu {

/// Takes a matrix's new values, run by run, to its CastTarget.
class TargetWriter {
 public:
  /// `measured` as in ListCast, or null.
  TargetWriter(const CastTarget& target, const float* measured);

  /// The quantized data that runs are cast to, as a matrix of the shape of what is cast; to be flattened with
  /// everything that runs are of. Empty if there are none.
  MatrixView& data() { return data_; }
  /// Values of elements (row, col) ... (row, col + count - 1), at most kRun of them; leaves them rounded to the nominal
  /// type.
  void take(float* values, std::int64_t count, std::int64_t row, std::int64_t col);
  /// After all elements: the other orientation, the inverse scales and the amax.
  void finish();

 private:
  void cast(const float* values, std::int64_t count, std::uint8_t* data) const;

  CastTarget target_;
  MatrixView data_;
  float scale_ = 1.0f;
  std::uint32_t amax_ = 0;
};

}  // namespace fp8lab::cpu

#pragma once

#include <cstdint>

#include "backend/device.h"

namespace fp8lab {

/// Counts of the values that were cast to eight bits.
struct CastCounts {
  std::int64_t values = 0;
  std::int64_t clipped = 0;      ///< above the largest code of the type by more than half a step; infinities too
  std::int64_t underflowed = 0;  ///< not 0 before the cast, and 0 after it

  CastCounts& operator+=(const CastCounts& other) {
    values += other.values;
    clipped += other.clipped;
    underflowed += other.underflowed;
    return *this;
  }
};

/// Counts casts on the host, from copies of the tensor and of its quantized data. A tensor whose orientations have
/// scales of their own is cast twice, so its values count twice.
class CastCounter : public CastWatch {
 public:
  void saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) override;
  const CastCounts& counts() const { return counts_; }

 private:
  CastCounts counts_;
};

}  // namespace fp8lab

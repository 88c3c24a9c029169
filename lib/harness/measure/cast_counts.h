#pragma once

#include <cstdint>

#include "backend/device.h"

namespace fp8lab {

/// What casts did to values.
struct CastCounts {
  std::int64_t values = 0;
  std::int64_t clipped = 0;      ///< beyond the largest code by more than half a step, infinities too
  std::int64_t underflowed = 0;  ///< not 0, and 0 as a code

  CastCounts& operator+=(const CastCounts& other) {
    values += other.values;
    clipped += other.clipped;
    underflowed += other.underflowed;
    return *this;
  }
};

/// Counts on the host, from copies of what is cast and of what it became. A tensor whose orientations have scales of
/// their own is cast twice.
class CastCounter : public CastWatch {
 public:
  void saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) override;
  const CastCounts& counts() const { return counts_; }

 private:
  CastCounts counts_;
};

}  // namespace fp8lab

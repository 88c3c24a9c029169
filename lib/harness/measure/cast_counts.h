#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "backend/device.h"

namespace fp8lab {

/// Counts of the values that were cast to eight bits.
struct CastCounts {
  std::int64_t values = 0;
  std::int64_t clipped = 0;      ///< above the largest code of the type by more than half a step; infinities too
  std::int64_t underflowed = 0;  ///< not 0 before the cast, and 0 after it
  double signal = 0.0;           ///< sum of squares of what was cast
  double noise = 0.0;            ///< and of what the cast changed

  CastCounts& operator+=(const CastCounts& other) {
    values += other.values;
    clipped += other.clipped;
    underflowed += other.underflowed;
    signal += other.signal;
    noise += other.noise;
    return *this;
  }
};

/// The casts of one tensor, by step.
struct TensorCasts {
  std::string tensor;  ///< its module and what it is there: "layers[0].mlp.fc1 gradient"
  std::map<std::int64_t, CastCounts> by_step;
};

/// Counts casts on the host, from copies of the tensor and of its quantized data. A tensor whose orientations have
/// scales of their own is cast twice, so its values count twice. The ledger has the step, and the holder of the
/// quantized data names the tensor.
class CastCounter : public CastWatch {
 public:
  CastCounter() = default;
  /// `needs_stored`: layers should store what they cast, so that none is missed.
  explicit CastCounter(bool needs_stored) : needs_stored_(needs_stored) {}
  void saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) override;
  void missed_cast() override { missed_ = true; }
  /// Frees its copies of what it counts, once nothing more is cast.
  void finish();
  bool needs_stored() const override { return needs_stored_; }
  /// True if some values were cast without being stored, so that they are not counted.
  bool missed() const { return missed_; }
  /// In the order of the first cast.
  const std::vector<TensorCasts>& tensors() const { return tensors_; }
  /// The sum over all tensors and steps.
  CastCounts counts() const;

 private:
  std::vector<TensorCasts> tensors_;
  bool missed_ = false;
  bool needs_stored_ = false;
  std::vector<float> values_;  ///< copies, kept from cast to cast: to clear new memory takes longer than to count
  std::vector<std::byte> data_, scales_;
};

}  // namespace fp8lab

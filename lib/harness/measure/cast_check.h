#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/device.h"
#include "harness/reference/matrix.h"

namespace fp8lab {

/// A cast whose values differ from the definition of its format.
struct WrongCast {
  reference_step::Matrix source;
  std::string what;  ///< "column-wise: 12 of 16384 values, ..."
};

/// Compares every cast that it sees with the definition of its format (harness/reference/casts.h), value by value. This
/// shows what no sum of products does: values that a block's larger ones hide. Casts whose
/// scale comes from a history are left out, since it does not follow from the values.
class CastCheck : public CastWatch {
 public:
  void saw_cast(Device& device, const Tensor& x, const QuantizedTensor& made) override;

  std::int64_t casts() const { return casts_; }
  const std::vector<WrongCast>& wrong() const { return wrong_; }

 private:
  std::int64_t casts_ = 0;
  std::vector<WrongCast> wrong_;
};

}  // namespace fp8lab

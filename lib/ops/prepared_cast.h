#pragma once

#include <string_view>

#include "ops/quantize.h"

namespace fp8lab {

/// A cast that is complete except for its input: outputs are allocated and arguments filled in.
struct PreparedCast {
  QuantizedTensor result;
  QuantizeArgs args;  ///< `in` has the input's type and shape, and no data
};

/// Prepares the cast of the result of `op`, which will not be stored. Throws Error unless casts_unstored() holds.
PreparedCast prepare_unstored_cast(Device& device, std::string_view op, const TensorSpec& spec,
                                   const Quantizer& inputs);

}  // namespace fp8lab

#pragma once

#include <string_view>

#include "ops/quantize.h"

namespace fp8lab {

/// A cast that is ready but for its input: outputs allocated, arguments filled in.
struct PreparedCast {
  QuantizedTensor result;
  QuantizeArgs args;  ///< `in` has the input's type and shape, and no data
};

/// Of the result of `op`, which will not be stored: as casts_unstored() has it, else Error.
PreparedCast prepare_unstored_cast(Device& device, std::string_view op, const TensorSpec& spec,
                                   const Quantizer& inputs);

}  // namespace fp8lab

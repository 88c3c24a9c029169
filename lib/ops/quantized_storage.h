#pragma once

#include "backend/device.h"
#include "tensor/quantized_tensor.h"

namespace fp8lab {

/// The column-wise half of a tensor whose halves are each other's transposes (per tensor, 128 x 128), made from its row-wise one without
/// touching a code.
QuantizedHalf make_columnwise(Device& device, const QuantizedTensor& tensor, HolderId holder);

}  // namespace fp8lab

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/device.h"
#include "support/error_of.h"
#include "support/test_device.h"

/// What the tests of dense operations share: tensors of given values on a device, and reading them back in double.
namespace fp8lab::support {

inline HolderId anyone(Device& device) { return device.holder(HolderKind::kInFlight); }

/// Stores the values as `dtype` rounds them; a reference must therefore start from read() and not from `values`.
inline Tensor make_tensor(Device& device, const Shape& shape, DType dtype, const std::vector<float>& values) {
  Tensor tensor = device.allocate({shape, dtype}, anyone(device));
  device.write(tensor, values);
  return tensor;
}

inline std::vector<double> read(Device& device, const Tensor& tensor) {
  const std::vector<float> values = device.read(tensor);
  return {values.begin(), values.end()};
}

}  // namespace fp8lab::support

#pragma once

#include <memory>
#include <string>

#include "backend/device.h"

namespace fp8lab {

/// A device whose kernels do nothing and whose addresses have no memory behind them: it runs only the schedule and
/// accounts for its bytes.
std::unique_ptr<Device> open_meta_device(const DeviceOptions& options);
std::string meta_unavailable_reason();
std::string describe_meta();

}  // namespace fp8lab

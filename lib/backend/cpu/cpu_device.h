#pragma once

#include <memory>
#include <string>

#include "backend/device.h"

namespace fp8lab {

/// The host as a device: memory from the heap, kernels in FP32, matrix products by matmul().
std::unique_ptr<Device> open_cpu_device(const DeviceOptions& options);
std::string cpu_unavailable_reason();
std::string describe_cpu();

}  // namespace fp8lab

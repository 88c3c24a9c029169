#pragma once

#include <memory>
#include <string>

#include "backend/device.h"

// Implemented by no_cuda.cpp where the CUDA Toolkit was absent at build time.
namespace fp8lab {

std::unique_ptr<Device> open_cuda_device(const DeviceOptions& options);
std::string cuda_unavailable_reason();
std::string describe_cuda();

}  // namespace fp8lab

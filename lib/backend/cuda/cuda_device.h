#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "backend/device.h"

// Implemented by no_cuda.cpp if the CUDA Toolkit was absent at build time.
namespace fp8lab {

std::unique_ptr<Device> open_cuda_device(const DeviceOptions& options);
std::string cuda_unavailable_reason();
/// Architecture of the first GPU; empty if there is none.
std::string_view cuda_arch();
std::vector<std::int64_t> cuda_gpu_memory();
std::string describe_cuda();

}  // namespace fp8lab

#include "backend/cuda/cuda_device.h"

#include <fmt/core.h>

#include "backend/cuda/cuda_check.h"
#include "core/check.h"

namespace fp8lab {

void cuda_check(cudaError_t status, std::string_view call) {
  if (status != cudaSuccess) fail(fmt::format("{}: {}", call, cudaGetErrorString(status)));
}

std::unique_ptr<Device> open_cuda_device(const DeviceOptions&) { fail("device 'cuda': " + cuda_unavailable_reason()); }

// Without asking the driver, which takes longer than most cells.
std::string cuda_unavailable_reason() {
  return "this version checks conversions on the card (ctest -L gpu) and runs no scenario there";
}

std::string describe_cuda() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return fmt::format("no card in sight: {}", cudaGetErrorString(status));
  std::string text;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    cuda_check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    text += fmt::format("{}{}, compute capability {}.{}, {:.1f} GiB", i ? "\n" : "", properties.name, properties.major,
                        properties.minor, static_cast<double>(properties.totalGlobalMem) / (1 << 30));
  }
  return text;
}

}  // namespace fp8lab

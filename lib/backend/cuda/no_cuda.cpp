#include "backend/cuda/cuda_device.h"
#include "core/check.h"

namespace fp8lab {

std::unique_ptr<Device> open_cuda_device(const DeviceOptions&) { fail("device 'cuda': " + cuda_unavailable_reason()); }
std::string cuda_unavailable_reason() { return "built without the CUDA Toolkit (nvcc was not found)"; }
std::string_view cuda_arch() { return {}; }
std::vector<std::int64_t> cuda_gpu_memory() { return {}; }
std::string describe_cuda() { return {}; }

}  // namespace fp8lab

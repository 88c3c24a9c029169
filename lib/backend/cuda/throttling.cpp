#include "backend/cuda/throttling.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <string_view>

#include "core/shared_library.h"

namespace fp8lab::cuda {
namespace {

// NVML's header is in no package that building needs, so what is used of it is declared here, as its reference states.
using NvmlDevice = struct nvmlDevice_st*;
constexpr int kSuccess = 0;
constexpr int kMultiprocessorClock = 1;  // NVML_CLOCK_SM

struct Nvml : SharedLibrary {
  Nvml()
      : SharedLibrary({.title = "NVML",
                       .names = {"libnvidia-ml.so.1", "libnvidia-ml.so"},
                       .remedy = "it comes with NVIDIA's driver"}) {}
  int (*init)() = find("nvmlInit_v2");
  int (*device_at)(const char* bus, NvmlDevice* device) = find("nvmlDeviceGetHandleByPciBusId_v2");
  int (*clock)(NvmlDevice device, int clock, unsigned* mhz) = find("nvmlDeviceGetClockInfo");
  int (*greatest_clock)(NvmlDevice device, int clock, unsigned* mhz) = find("nvmlDeviceGetMaxClockInfo");
  int (*throttle_reasons)(NvmlDevice device,
                          unsigned long long* reasons) = find("nvmlDeviceGetCurrentClocksThrottleReasons");
};

struct Cause {
  unsigned long long bit;
  std::string_view name;
};
constexpr std::array kCauses{
    Cause{0x02, "clocks that an administrator set"},
    Cause{0x04, "its power limit"},
    Cause{0x08, "hardware slowdown"},
    Cause{0x20, "its temperature (driver)"},
    Cause{0x40, "its temperature (hardware)"},
    Cause{0x80, "the power supply's brake"},
};

}  // namespace

std::string throttling_note(int ordinal) {
  const Nvml& nvml = find_library<Nvml>();
  if (!nvml.unavailable_reason().empty() || nvml.init() != kSuccess) return {};
  std::array<char, 32> bus{};
  NvmlDevice device = nullptr;
  unsigned long long reasons = 0;
  if (cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), ordinal) != cudaSuccess ||
      nvml.device_at(bus.data(), &device) != kSuccess || nvml.throttle_reasons(device, &reasons) != kSuccess)
    return {};
  std::string causes;
  for (const Cause& cause : kCauses)
    if ((reasons & cause.bit) != 0) causes += fmt::format("{}{}", causes.empty() ? "" : ", ", cause.name);
  if (causes.empty()) return {};
  unsigned mhz = 0, most = 0;
  if (nvml.clock(device, kMultiprocessorClock, &mhz) != kSuccess ||
      nvml.greatest_clock(device, kMultiprocessorClock, &most) != kSuccess)
    return fmt::format("the GPU was held back by {} when the run ended", causes);
  return fmt::format("the GPU was held back by {} when the run ended: {} of {} MHz", causes, mhz, most);
}

}  // namespace fp8lab::cuda

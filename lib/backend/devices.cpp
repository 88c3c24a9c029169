#include <fmt/core.h>

#include <array>
#include <chrono>
#include <set>
#include <string>

#include "backend/cpu/cpu_device.h"
#include "backend/cuda/cuda_device.h"
#include "backend/device.h"
#include "backend/meta/meta_device.h"
#include "core/check.h"
#include "core/row_by_name.h"

namespace fp8lab {
namespace {

class HostMoment final : public Moment {
 public:
  std::chrono::steady_clock::time_point at = std::chrono::steady_clock::now();
};

std::string_view any_arch() { return {}; }
std::vector<std::int64_t> no_memory_of_its_own() { return {}; }

const std::array kDevices = {
    DeviceRow{"cpu", "computes for real on the host", open_cpu_device, cpu_unavailable_reason, any_arch,
              no_memory_of_its_own, describe_cpu},
    DeviceRow{"meta", "accounts for every byte and computes nothing: full-size models in milliseconds",
              open_meta_device, meta_unavailable_reason, any_arch, no_memory_of_its_own, describe_meta},
    DeviceRow{"cuda", "computes on an NVIDIA GPU", open_cuda_device, cuda_unavailable_reason, cuda_arch,
              cuda_gpu_memory, describe_cuda},
};

}  // namespace

std::unique_ptr<Moment> Device::moment() { return std::make_unique<HostMoment>(); }

double Device::seconds_between(const Moment& begin, const Moment& end) {
  return std::chrono::duration<double>(static_cast<const HostMoment&>(end).at -
                                       static_cast<const HostMoment&>(begin).at)
      .count();
}

std::span<const DeviceRow> devices() { return kDevices; }

const DeviceRow& device_row(std::string_view name) { return row_by_name(kDevices, "device", name); }

int count_gpus(std::string_view name) {
  if (!device_row(name).unavailable_reason().empty()) return 0;
  std::set<std::string> gpus;
  for (int rank = 0;; ++rank) {
    const std::unique_ptr<Device> device = open_device(name, {.rank = rank, .memory = {}});
    if (device->peer_access() == nullptr) return 1;
    if (!gpus.insert(device->peer_access()->gpu()).second) return static_cast<int>(gpus.size());
  }
}

std::unique_ptr<Device> open_device(std::string_view name, const DeviceOptions& options) {
  const DeviceRow& row = device_row(name);
  if (const std::string reason = row.unavailable_reason(); !reason.empty())
    fail(fmt::format("device '{}' is unavailable: {}", name, reason));
  std::unique_ptr<Device> device = row.open(options);
  device->context().set_deterministic(options.deterministic);
  device->context().set_tensor_core_sums(options.tensor_core_sums);
  return device;
}

}  // namespace fp8lab

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
    DeviceRow{"cpu", "computes for real on the host", true, open_cpu_device, cpu_unavailable_reason, any_arch,
              no_memory_of_its_own, describe_cpu},
    DeviceRow{"meta", "accounts for every byte and computes nothing: full-size models in a fraction of a second", false,
              open_meta_device, meta_unavailable_reason, any_arch, no_memory_of_its_own, describe_meta},
    DeviceRow{"cuda", "computes on an NVIDIA GPU", true, open_cuda_device, cuda_unavailable_reason, cuda_arch,
              cuda_gpu_memory, describe_cuda},
};

}  // namespace

void Device::read_to(const Tensor& tensor, std::span<float> values) {
  if (!computes()) fail(fmt::format("device '{}' computes nothing: there is no value to read", name()));
  check(std::ssize(values) == tensor.numel(), "read: there must be room for every value of the tensor");
  if (!values.empty()) copy_values_to_host(tensor, values);
}

void Device::read_bytes_to(const Tensor& tensor, std::span<std::byte> bytes) {
  if (!computes()) fail(fmt::format("device '{}' computes nothing: there are no bytes to read", name()));
  check(tensor.contiguous(), "read_bytes: the tensor is not contiguous");
  check(std::ssize(bytes) == tensor.bytes(), "read_bytes: there must be room for every byte of the tensor");
  if (!bytes.empty()) copy_bytes_to_host(tensor, bytes);
}

std::vector<float> Device::read(const Tensor& tensor) {
  std::vector<float> values(computes() ? static_cast<std::size_t>(tensor.numel()) : 0);
  read_to(tensor, values);
  return values;
}

std::vector<std::byte> Device::read_bytes(const Tensor& tensor) {
  std::vector<std::byte> bytes(computes() ? static_cast<std::size_t>(tensor.bytes()) : 0);
  read_bytes_to(tensor, bytes);
  return bytes;
}

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

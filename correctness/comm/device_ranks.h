#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/late_gpu.h"
#include "comm/ranks.h"
#include "support/test_device.h"

/// Ranks whose buffers lie on devices: the GPUs that CTest names, or else LateGpu devices made of host memory.
namespace fp8lab::comm_test {

inline std::unique_ptr<Device> open_rank_device(const ProcessGroup& world) {
  if (support::test_device() == "cpu") return LateGpu::open();
  return open_device(support::test_device(),
                     {.rank = world.local_rank(), .memory = {.capacity_bytes = 0, .poison = true}});
}

inline bool on_gpu() { return support::test_device() != "cpu"; }

/// One rank's device, and tensors of bytes on it.
class Gpu {
 public:
  explicit Gpu(ProcessGroup& world) : device_(open_rank_device(world)), group_(world.for_device(*device_)) {}

  Device& device() { return *device_; }
  ProcessGroup& group() { return *group_; }

  Tensor bytes(std::span<const std::byte> values) {
    const Tensor tensor = empty(static_cast<std::int64_t>(values.size()));
    device_->write_bytes(tensor, values);
    return tensor;
  }
  Tensor empty(std::int64_t bytes) {
    return device_->allocate({Shape{bytes}, DType::kU8}, device_->holder(HolderKind::kInput, "", "bytes"));
  }
  std::vector<std::byte> read(const Tensor& tensor) { return device_->read_bytes(tensor); }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProcessGroup> group_;
};

inline std::span<const std::byte> part_of(std::span<const std::byte> bytes, std::int64_t first, std::int64_t count) {
  return bytes.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

inline std::byte* at(const Tensor& tensor, std::int64_t offset = 0) { return tensor.view().data + offset; }

}  // namespace fp8lab::comm_test

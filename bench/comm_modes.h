#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/device.h"
#include "comm/process_groups.h"
#include "over_gpus.h"

// The modes in which bench_comm_gpu runs a collective, and a rank's GPU, process group and buffers in a mode.
namespace fp8lab {

/// How a row runs its collectives.
struct Mode {
  std::string name;
  std::string_view row;
  bool in_place = false;
  bool windows = false;  ///< buffers in memory of ProcessGroup::gather_source()
  PeerCopyPath path = PeerCopyPath::kBySize;
  std::int64_t writes_from_bytes = RunOptions().writes_from_bytes;

  RunOptions options() const {
    RunOptions options{.ranks = gpus()};
    options.writes_from_bytes = writes_from_bytes;
    options.peer_copies = path;
    return options;
  }
};

/// RunOptions::writes_from_bytes that no gather reaches.
inline constexpr std::int64_t kNever = std::int64_t{1} << 60;

/// All modes; a machine runs those whose process group it has. Modes named `symmetric` use NCCL's own symmetric-memory
/// kernels.
inline const std::vector<Mode>& modes() {
  static const std::vector<Mode> kModes = {
      {.name = "threads", .row = "in_process"},
      {.name = "threads/in_place", .row = "in_process", .in_place = true},
      {.name = "threads/processors/in_place", .row = "in_process", .in_place = true, .path = PeerCopyPath::kProcessors},
      {.name = "threads/engines/in_place", .row = "in_process", .in_place = true, .path = PeerCopyPath::kCopyEngines},
      {.name = "nccl", .row = "nccl"},
      {.name = "nccl/in_place", .row = "nccl", .in_place = true},
      {.name = "nccl/windows", .row = "nccl", .windows = true},
      {.name = "nccl/windows/in_place", .row = "nccl", .in_place = true, .windows = true},
      {.name = "nccl/processors/in_place",
       .row = "nccl",
       .in_place = true,
       .windows = true,
       .path = PeerCopyPath::kProcessors},
      {.name = "nccl/engines/in_place",
       .row = "nccl",
       .in_place = true,
       .windows = true,
       .path = PeerCopyPath::kCopyEngines},
      {.name = "nccl/symmetric", .row = "nccl", .windows = true, .writes_from_bytes = kNever},
      {.name = "nccl/symmetric/in_place",
       .row = "nccl",
       .in_place = true,
       .windows = true,
       .writes_from_bytes = kNever},
  };
  return kModes;
}

/// The beginning of each rank's part of `total` bytes or elements, and the end of the last part.
inline std::vector<std::int64_t> even_offsets(std::int64_t total, int ranks) {
  std::vector<std::int64_t> offsets;
  for (int rank = 0; rank <= ranks; ++rank) offsets.push_back(total / ranks * rank);
  return offsets;
}

/// A rank's GPU and its process group for GPU memory.
struct GpuPart {
  GpuPart(const Mode& mode, ProcessGroup& world)
      : device(open_device("cuda", {.rank = world.local_rank(), .memory = {}})), group(world.for_device(*device)) {
    if (mode.windows) device->memory().gather_from(group->gather_source());
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<ProcessGroup> group;
};

/// Bytes in GPU memory: in ordinary memory, or (`window`) in memory from which the group gathers fastest.
class Buffer {
 public:
  Buffer(Device& device, std::int64_t bytes, bool window) : device_(device) {
    const HolderId holder = device.holder(HolderKind::kWorkspace, "", window ? "window" : "buffer");
    device.memory().place(holder, window ? Pool::kGathered : Pool::kOwn);
    tensor_ = device.allocate({Shape{bytes}, DType::kU8}, holder);
  }
  std::byte* data() const { return tensor_.view().data; }
  void write(std::int64_t first, std::span<const std::byte> bytes) const {
    device_.peer_access()->from_host(data() + first, bytes.data(), static_cast<std::int64_t>(bytes.size()));
  }
  std::vector<std::byte> read() const { return device_.read_bytes(tensor_); }

 private:
  Device& device_;
  Tensor tensor_;
};

}  // namespace fp8lab

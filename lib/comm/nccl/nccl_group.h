#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "backend/device.h"
#include "backend/peer_access.h"
#include "comm/nccl/communicator.h"
#include "comm/process_group.h"

namespace fp8lab::nccl {

struct NcclGroupOptions {
  std::chrono::nanoseconds timeout;
  /// See RunOptions for these two.
  std::int64_t writes_from_bytes = 0;
  PeerCopyPath peer_copies = PeerCopyPath::kBySize;
  bool gather_windows = true;  ///< false: no gather_source()
  std::shared_ptr<Trouble> trouble;
  bool one_process = false;  ///< as in Communicator::Args
  std::function<void(const std::string&)> notify;
};

/// The ranks of `host` for buffers in the memory of `device`, a GPU that no other rank uses. Both outlive the new
/// group.
std::unique_ptr<ProcessGroup> make_nccl_group(ProcessGroup& host, Device& device, const NcclGroupOptions& options);

}  // namespace fp8lab::nccl

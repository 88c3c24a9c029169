#pragma once

#include <memory>

#include "backend/device.h"
#include "comm/process_group.h"

namespace fp8lab {

/// The ranks of `host` for buffers in the memory of `device`, which has a PeerAccess: bytes are copied to the host,
/// moved by `host`, and copied back. Every call waits for the device. It works over any group; a group that reaches
/// GPUs directly overrides ProcessGroup::do_for_device().
std::unique_ptr<ProcessGroup> make_staged_group(ProcessGroup& host, Device& device);

}  // namespace fp8lab

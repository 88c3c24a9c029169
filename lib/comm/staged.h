#pragma once

#include <memory>

#include "backend/device.h"
#include "comm/process_group.h"

namespace fp8lab {

/// `host`'s ranks for buffers in the memory of `device`, which has a PeerAccess: bytes are copied to the host, move as
/// `host` moves them, and are copied back. Every call waits for the device. It serves any group; those who reach GPUs
/// themselves override ProcessGroup::do_on().
std::unique_ptr<ProcessGroup> make_staged_group(ProcessGroup& host, Device& device);

}  // namespace fp8lab

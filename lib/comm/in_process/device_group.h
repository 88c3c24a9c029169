#pragma once

#include <memory>

#include "backend/device.h"
#include "comm/in_process/group_state.h"
#include "comm/in_process/world.h"
#include "comm/process_group.h"

namespace fp8lab::in_process {

/// `host`'s membership of the group of `group_state`, for buffers in the memory of `device`, which has a PeerAccess.
/// Every member makes its own, with one `call`. `group_state` must not have been used before.
///
/// Each rank writes its own bytes to where the others want them, and reduces the others' slices directly from their
/// memory.
std::unique_ptr<ProcessGroup> make_device_group(World& world, GroupState& group_state, ProcessGroup& host,
                                                Device& device, const Signature& call);

}  // namespace fp8lab::in_process

#pragma once

#include <memory>

#include "backend/device.h"
#include "comm/in_process/group_state.h"
#include "comm/in_process/world.h"
#include "comm/process_group.h"

namespace fp8lab::in_process {

/// `host`'s membership of `group` for buffers in the memory of `device`, which has a PeerAccess; every member makes its
/// own, with one `call`. `group` has met in nothing yet.
///
/// Each rank writes its bytes to where the others want them, and reduces the others' slices from where they lie.
std::unique_ptr<ProcessGroup> make_device_group(World& world, GroupState& group_state, ProcessGroup& host,
                                                Device& device, const Signature& call);

}  // namespace fp8lab::in_process

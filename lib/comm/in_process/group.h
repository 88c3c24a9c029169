#pragma once

#include <memory>
#include <vector>

#include "comm/in_process/group_state.h"
#include "comm/in_process/world.h"
#include "comm/process_group.h"

namespace fp8lab::in_process {

/// The membership of the group's member `rank`. `world` and `group_state` outlive it.
std::unique_ptr<ProcessGroup> make_group(World& world, GroupState& group_state, std::vector<int> world_ranks, int rank,
                                         bool moves_data);

}  // namespace fp8lab::in_process

#pragma once

#include "comm/process_group.h"
#include "harness/cell/cell.h"
#include "harness/reference/casts.h"
#include "harness/reference/matrix.h"

namespace fp8lab {

/// A gradient over all ranks, on each of them: reduced to the mean in the type of the reduction, over shards and then
/// over replicas. Collective. `rounds`: as the types of the reduction and of parameters do.
reference_step::Matrix mean_over_ranks(const CellConfig& cell, ProcessGroup* world,
                                       const reference_step::Casts& storage, const reference_step::Matrix& mine,
                                       bool rounds);

}  // namespace fp8lab

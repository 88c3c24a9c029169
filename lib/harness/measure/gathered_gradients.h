#pragma once

#include <vector>

#include "comm/process_group.h"
#include "core/shape.h"
#include "harness/cell/cell.h"
#include "harness/measure/scores.h"
#include "harness/train/element_range.h"

namespace fp8lab {

/// The unsharded gradients of every replica, on every rank. `mine`: of each parameter the elements `own`, which this
/// rank has; `shapes`: of unsharded parameters. Collective over `world`, which is null if nothing is sharded.
std::vector<Lists> gathered_gradients(ProcessGroup* world, const CellConfig& cell, const Lists& mine,
                                      const std::vector<ElementRange>& own, const std::vector<Shape>& shapes);

}  // namespace fp8lab

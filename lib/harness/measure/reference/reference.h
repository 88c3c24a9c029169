#pragma once

#include "comm/process_group.h"
#include "harness/cell/cell.h"

namespace fp8lab {

/// Puts the metrics reference.*: trains the arm once more and compares the output, every gradient and every update of a
/// weight of every step with a step computed in double (harness/reference) from the same inputs and weights, which are
/// read from the runtime. Each step starts from the runtime's own weights, and each update from its own gradients, so a
/// defect shows where it is. Faults are named in the arm's notes, by tensor, rank, micro-batch and step. Collective
/// over `world`, which is null if nothing is sharded; every rank computes the reference of its own micro-batches.
void measure_reference(const CellConfig& cell, Arm arm, ProcessGroup* world, ArmResult& result);

}  // namespace fp8lab

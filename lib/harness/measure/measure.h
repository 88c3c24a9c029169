#pragma once

#include <functional>
#include <map>
#include <string>

#include "comm/run.h"
#include "harness/cell/cell.h"

namespace fp8lab {

/// Puts beside each measured metric what `figures` say of it, and for memory also as a metric `memory.predicted_*` of
/// its own. Returns the largest gap, either way, between a memory metric and its figure.
double put_predictions(const std::map<std::string, double>& figures, std::map<std::string, MetricValue>& metrics);

/// Runs one rank of one arm of a cell and measures what the cell asks for. `before`: with the cell's fix reverted;
/// `after`: as it is; `bf16`: the same model without quantization. Parity metrics run the BF16 model, and for `before`
/// the fixed one, beside it on devices of their own, so that memory figures are the arm's alone.
///
/// `world` is needed where the cell is sharded: every rank of it makes this call. Parity figures are those of all ranks
/// together, and equal on all; memory, traffic, host and time are this rank's.
///
/// Throws OutOfMemory (its message is the ledger's account) and Error.
ArmResult measure_arm_on_rank(const CellConfig& cell, Arm arm, ProcessGroup* world);

/// Has ranks for a cell: calls the function once for every rank that lives in this process, and returns when all have
/// returned. Throws the first rank's error, as run_ranks() does.
using StartRanks = std::function<void(const CellConfig&, const RankFunction&)>;

/// Every rank in this process: threads, or where the device computes nothing rank 0 alone, which holds the most.
void start_ranks_here(const CellConfig& cell, const RankFunction& rank_function);

/// Runs one arm on its ranks. The result is that of the lowest rank in this process. A cell that is not sharded needs
/// no ranks and starts none.
ArmResult measure_arm_over(const StartRanks& start, const CellConfig& cell, Arm arm);

/// The same over start_ranks_here().
ArmResult measure_arm(const CellConfig& cell, Arm arm);

}  // namespace fp8lab

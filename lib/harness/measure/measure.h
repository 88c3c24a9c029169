#pragma once

#include <functional>
#include <map>
#include <string>

#include "comm/run.h"
#include "harness/cell/cell.h"

namespace fp8lab {

/// Sets MetricValue::predicted of each measured metric from `figures`, and for memory also adds a metric
/// `memory.predicted_*`. Returns the largest absolute difference between a memory metric and its figure.
double put_predictions(const std::map<std::string, double>& figures, std::map<std::string, MetricValue>& metrics);

/// Runs one rank of one arm of a cell and measures the metrics that the cell lists. `before`: with the cell's fix
/// reverted; `after`: with all fixes; `bf16`: the same model without quantization. Parity metrics also run the BF16
/// model, and for `before` the fixed one, on devices of their own, so that memory figures are only the arm's.
///
/// If the cell is sharded, `world` must not be null, and every rank of it makes this call. Parity figures are over
/// all ranks and equal on all; memory, traffic, host and time figures are this rank's.
///
/// Throws OutOfMemory (its message lists the live bytes of the ledger) and Error.
ArmResult measure_arm_on_rank(const CellConfig& cell, Arm arm, ProcessGroup* world);

/// Starts the ranks of a cell: calls the function once for every rank that lives in this process, and returns when all
/// calls have returned. Throws the first rank's error, as run_ranks() does.
using StartRanks = std::function<void(const CellConfig&, const RankFunction&)>;

/// Starts every rank in this process, as a thread. If the device computes nothing, starts rank 0 only, which holds
/// the most bytes.
void start_ranks_here(const CellConfig& cell, const RankFunction& rank_function);

/// Runs one arm on its ranks and returns the result of the lowest rank in this process. A cell that is not sharded runs
/// without a process group, and `start` is not called.
ArmResult measure_arm_over(const StartRanks& start, const CellConfig& cell, Arm arm);

/// measure_arm_over() with start_ranks_here().
ArmResult measure_arm(const CellConfig& cell, Arm arm);

}  // namespace fp8lab

#pragma once

#include <string>

#include "comm/run.h"

namespace fp8lab {

/// One rank of many, without the others: its collectives are checked and counted, in time that does not grow with the
/// number of ranks.
std::string simulated_unavailable_reason();
void run_simulated(const RunOptions& options, const RankFunction& rank_function);

}  // namespace fp8lab

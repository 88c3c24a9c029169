#pragma once

#include "comm/processes/transport.h"
#include "comm/run.h"

namespace fp8lab::processes {

/// Runs `rank_function` as the rank that this process is. Returns when every rank has ended, or throws the first cause.
void run_rank(Transport& transport, const RunOptions& options, const RankFunction& rank_function);

}  // namespace fp8lab::processes

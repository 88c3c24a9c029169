#pragma once

#include <string>

#include "comm/run.h"

namespace fp8lab {

/// Ranks as processes that torchrun or srun started, one in each, which meet at RunOptions::rendezvous. Needs nothing
/// installed.
std::string sockets_unavailable_reason();
void run_sockets(const RunOptions& options, const RankFunction& rank_function);

}  // namespace fp8lab

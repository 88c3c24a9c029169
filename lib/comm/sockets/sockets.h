#pragma once

#include <string>

#include "comm/run.h"

namespace fp8lab {

/// Ranks as processes of one host that torchrun or srun started, one rank each. They connect at the first run, by
/// RunOptions::rendezvous, over Unix-domain sockets.
std::string sockets_unavailable_reason();
void run_sockets(const RunOptions& options, const RankFunction& rank_function);

}  // namespace fp8lab

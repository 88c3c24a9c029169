#pragma once

#include <string>

#include "comm/run.h"

namespace fp8lab {

/// Ranks as processes started by torchrun or srun, one rank each, which connect at RunOptions::rendezvous: sockets.cpp
/// if CMake found libzmq and libsodium, else no_sockets.cpp.
std::string sockets_unavailable_reason();
void run_sockets(const RunOptions& options, const RankFunction& rank_function);

}  // namespace fp8lab

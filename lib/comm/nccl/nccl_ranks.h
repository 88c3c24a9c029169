#pragma once

#include <string>

#include "comm/run.h"

namespace fp8lab {

/// Ranks of another row (RunOptions::over), each with a GPU of its own, whose GPUs' bytes NCCL moves: nccl.cpp where
/// CMake found CUDA and NCCL, else no_nccl.cpp. In host memory, and where ranks share GPUs, the other row moves bytes
/// itself.
///
/// Reductions have the bits of every other row: NCCL provides the summands of each slice to the rank that owns it,
/// where they are added in rank order (comm/reduce.h). That moves what a ring would, and leaves the sum's order to
/// nobody.
///
/// NVLink multicast is never asked for; NCCL itself leaves it alone only where NCCL_NVLS_ENABLE=0 is in the
/// environment.
std::string nccl_unavailable_reason();
void run_nccl(const RunOptions& options, const RankFunction& rank_function);

}  // namespace fp8lab

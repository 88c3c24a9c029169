#pragma once

#include <string>

#include "comm/run.h"

namespace fp8lab {

/// Ranks of another row (RunOptions::over), each with a GPU of its own, with NCCL to move bytes between GPUs: nccl.cpp
/// if CMake found CUDA and NCCL, else no_nccl.cpp. In host memory, and if ranks share GPUs, the other row moves bytes
/// itself.
///
/// Reductions have the same bits as in every other row: NCCL sends the summands of each slice to the rank that owns it,
/// and that rank adds them in rank order (comm/reduce.h). A ring moves equally many bytes. No algorithm of NCCL
/// determines the order of the sum.
///
/// NVLink multicast is never requested. NCCL itself avoids it only if NCCL_NVLS_ENABLE=0 is in the environment.
std::string nccl_unavailable_reason();
void run_nccl(const RunOptions& options, const RankFunction& rank_function);

}  // namespace fp8lab

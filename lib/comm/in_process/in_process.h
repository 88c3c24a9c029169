#pragma once

#include <string>

#include "comm/run.h"

namespace fp8lab {

/// Ranks as threads of this process, which read each other's buffers. Needs no further software.
std::string in_process_unavailable_reason();
void run_in_process(const RunOptions& options, const RankFunction& rank_function);

}  // namespace fp8lab

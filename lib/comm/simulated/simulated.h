#pragma once

#include <string>

#include "comm/run.h"

namespace fp8lab {

/// One rank of many with nobody else: what it issues is checked and counted, in time independent of the others' work.
std::string simulated_unavailable_reason();
void run_simulated(const RunOptions& options, const RankFunction& rank_function);

}  // namespace fp8lab

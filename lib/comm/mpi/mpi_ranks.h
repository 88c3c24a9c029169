#pragma once

#include <string>

#include "comm/run.h"

namespace fp8lab {

/// Ranks as processes started by mpirun or srun, one rank each: mpi.cpp if CMake found MPI, else no_mpi.cpp.
std::string mpi_unavailable_reason();
void run_mpi(const RunOptions& options, const RankFunction& rank_function);

}  // namespace fp8lab

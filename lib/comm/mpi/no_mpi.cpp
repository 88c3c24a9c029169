#include "comm/mpi/mpi_ranks.h"
#include "core/check.h"

namespace fp8lab {

std::string mpi_unavailable_reason() { return "this build found no MPI (Debian: libopenmpi-dev and openmpi-bin)"; }

void run_mpi(const RunOptions&, const RankFunction&) { fail(mpi_unavailable_reason()); }

}  // namespace fp8lab

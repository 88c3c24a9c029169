#include <fmt/core.h>

#include "comm/mpi/mpi_ranks.h"
#include "comm/mpi/session.h"
#include "comm/processes/group.h"
#include "core/check.h"

namespace fp8lab {

std::string mpi_unavailable_reason() { return {}; }

void run_mpi(const RunOptions& options, const RankFunction& rank_function) {
  mpi::Session& session = mpi::Session::instance();
  session.check_usable();
  if (session.size() != options.ranks)
    fail(fmt::format("a run of {} ranks over {} MPI process{}: start it with mpirun -n {}", options.ranks,
                     session.size(), session.size() == 1 ? "" : "es", options.ranks));
  processes::run_rank(session, options, rank_function);
}

}  // namespace fp8lab

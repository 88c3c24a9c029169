#include "comm/sockets/sockets.h"

#include <fmt/core.h>

#include <optional>

#include "comm/processes/group.h"
#include "comm/sockets/session.h"
#include "core/check.h"

namespace fp8lab {

std::string sockets_unavailable_reason() { return {}; }

void run_sockets(const RunOptions& options, const RankFunction& rank_function) {
  const Rendezvous& rendezvous = options.rendezvous;
  if (rendezvous.size != options.ranks)
    fail(fmt::format("a run of {} ranks over {} launched process{}: start it with torchrun --nproc-per-node {}",
                     options.ranks, rendezvous.size, rendezvous.size == 1 ? "" : "es", options.ranks));
  // The connections last as long as the process.
  static std::optional<sockets::Session> session;
  static std::optional<Rendezvous> connected;
  if (!session) session.emplace(options);
  if (!connected) connected = rendezvous;
  check(rendezvous == *connected,
        "this process is already connected to the ranks of another job, and the connections last as long as the "
        "process: start a new process for another job, rank or number of ranks");
  processes::run_rank(*session, options, rank_function);
}

}  // namespace fp8lab

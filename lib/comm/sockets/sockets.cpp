#include "comm/sockets/sockets.h"

#include <fmt/core.h>

#include <chrono>

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
  sockets::Session& session = sockets::Session::instance(
      rendezvous, {.deadline = std::chrono::steady_clock::now() + options.timeout, .stop = options.stop},
      options.notify);
  processes::run_rank(session, options, rank_function);
}

}  // namespace fp8lab

#include "comm/sockets/sockets.h"

#include <fmt/core.h>

#include <chrono>
#include <optional>

#include "comm/processes/group.h"
#include "comm/sockets/address.h"
#include "comm/sockets/session.h"
#include "comm/sockets/user_key.h"
#include "core/check.h"

namespace fp8lab {

namespace {

/// Ranks of one machine authenticate each other without a secret of the job. Where there is no key, anyone on the
/// machine may connect.
void set_key_of_user(Rendezvous& rendezvous, const RunOptions& options) {
  if (rendezvous.size == 1 || zmq_has("curve") != 1) return;
  try {
    rendezvous.secret = sockets::user_key();
  } catch (const Error& error) {
    if (options.notify) options.notify(error.what());
  }
}

}  // namespace

std::string sockets_unavailable_reason() { return {}; }

void run_sockets(const RunOptions& options, const RankFunction& rank_function) {
  Rendezvous rendezvous = options.rendezvous;
  if (rendezvous.size != options.ranks)
    fail(fmt::format("a run of {} ranks over {} launched process{}: start it with torchrun --nproc-per-node {}",
                     options.ranks, rendezvous.size, rendezvous.size == 1 ? "" : "es", options.ranks));
  // The connections last as long as the process.
  static std::optional<sockets::Session> session;
  static std::optional<Rendezvous> connected;
  if (rendezvous.secret.empty() && sockets::names_loopback(rendezvous.host)) set_key_of_user(rendezvous, options);
  try {
    const auto deadline = std::chrono::steady_clock::now() + options.timeout;
    if (!session) session.emplace(rendezvous, sockets::WaitLimit{deadline, options.stop}, options.notify);
  } catch (const zmq::error_t& error) {
    fail(fmt::format("the connection with other ranks: libzmq: {}", error.what()));
  }
  if (!connected) connected = rendezvous;
  check(rendezvous == *connected,
        "this process is already connected to the ranks of another job, and the connections last as long as the "
        "process: start a new process for another address, port, job, rank, number of ranks or FP8LAB_JOB_SECRET");
  processes::run_rank(*session, options, rank_function);
}

}  // namespace fp8lab

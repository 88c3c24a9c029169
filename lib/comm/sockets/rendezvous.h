#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "comm/launch.h"
#include "comm/sockets/link.h"

namespace fp8lab::sockets {

/// When to stop waiting.
struct WaitLimit {
  std::chrono::steady_clock::time_point deadline;
  std::stop_token stop = {};

  bool over() const { return stop.stop_requested() || std::chrono::steady_clock::now() >= deadline; }
};

/// The connections of one rank with all others. Members are destroyed in reverse order: links end before the context.
struct Mesh {
  std::unique_ptr<Complaints> complaints;
  std::unique_ptr<Context> context;
  std::vector<std::unique_ptr<Link>> links;  ///< by rank; null for this rank
};

/// Connects the processes of a run.
///
/// Rank 0 listens at the first free port from the rendezvous's port on. The other ranks try all those ports at once
/// until rank 0 of their job answers. They tell rank 0 where they listen, and learn from it where all lower ranks
/// listen. With a secret, ranks listen at every interface, unless the host is written as loopback. Without one they
/// listen only at the address of the host, and rank 0 reports that to `notify`. A connection that is no rank's is
/// dropped, and reported to `notify` in one line. Throws Error if a rank does not come before the deadline, or if rank
/// 0 refuses this rank.
Mesh connect_ranks(const Rendezvous& rendezvous, const WaitLimit& wait_limit,
                   const std::function<void(const std::string&)>& notify);

}  // namespace fp8lab::sockets

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

/// When to give up waiting.
struct WaitLimit {
  std::chrono::steady_clock::time_point deadline;
  std::stop_token stop = {};

  bool over() const { return stop.stop_requested() || std::chrono::steady_clock::now() >= deadline; }
};

/// The connections of one rank with all others. They end before what they use.
struct Mesh {
  std::unique_ptr<Complaints> complaints;
  std::unique_ptr<Context> context;
  std::vector<std::unique_ptr<Link>> links;  ///< by rank; none at this rank's own place
};

/// Connects the processes of a run.
///
/// Rank 0 listens at the first free port from the rendezvous's own on; the others try all those ports at once until
/// rank 0 of their job answers, tell it where they listen, and learn from it where everybody does. With a secret, ranks
/// listen at every interface, unless the host is spelled as loopback; without, at the one alone that the host names,
/// which `notify` is reported on rank 0. A connection that is no rank's is dropped, with a line to `notify`. Throws
/// Error when somebody does not come before the deadline, or refuses this rank.
Mesh connect_ranks(const Rendezvous& rendezvous, const WaitLimit& wait_limit,
                   const std::function<void(const std::string&)>& notify);

}  // namespace fp8lab::sockets

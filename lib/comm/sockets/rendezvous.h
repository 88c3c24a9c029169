#pragma once

#include <chrono>
#include <stop_token>
#include <string>
#include <vector>

#include "comm/launch.h"
#include "comm/sockets/router.h"

namespace fp8lab::sockets {

/// When to stop waiting.
struct WaitLimit {
  std::chrono::steady_clock::time_point deadline;
  std::stop_token stop = {};

  bool over() const { return stop.stop_requested() || std::chrono::steady_clock::now() >= deadline; }
  /// For so long after the deadline ranks wait for rank 0's report of the missing ranks.
  WaitLimit with_grace() const { return {.deadline = deadline + std::chrono::seconds(2), .stop = stop}; }
};
inline constexpr const char* kStopped = "the run was stopped from outside";
/// How long to wait at most before a stop from outside is noticed.
inline constexpr std::chrono::milliseconds kStopCheckInterval(20);

struct Found {
  RankId id{};
  std::string endpoint{};  ///< to which this rank connects; empty: the other rank connects
};

/// Finds the other ranks, makes `router`, which others know as `id`, listen to higher ranks, and connects it to the
/// lower ones. Returns all ranks, by rank.
///
/// Rank 0 listens at the first free port from the rendezvous's port on. The other ranks try all those ports at once
/// until rank 0 of their job answers. They tell rank 0 where their routers listen, and it tells every rank. With a
/// secret, ranks listen at every interface, unless the host is written as loopback. Without one they listen only at the
/// address of the host, or by which they reach it, and rank 0 reports that to `context`. Throws Error if a rank does
/// not come before the deadline, or if rank 0 refuses this rank.
std::vector<Found> find_ranks(const Rendezvous& rendezvous, const WaitLimit& wait_limit, SocketContext& context,
                              const RankId& id, Router& router);

}  // namespace fp8lab::sockets

#pragma once

#include <vector>

#include "comm/launch.h"
#include "comm/sockets/socket.h"

namespace fp8lab::sockets {

/// Brings the processes of a run together: a connection to every other rank, by rank; none at this rank's own place.
///
/// Rank 0 listens at the first free port from the rendezvous's own on, at every address of its machine unless the host is spelled
/// as loopback; the others try those ports until rank 0 of their job answers, tell it where they listen, and learn from it where
/// everybody does. Throws Error, the same on every rank that rank 0 can still tell, when somebody does not come in time or is no
/// rank of this run.
std::vector<Socket> meet(const Rendezvous& rendezvous, const Patience& patience);

}  // namespace fp8lab::sockets

#include "comm/sockets/sockets.h"
#include "core/check.h"

namespace fp8lab {

std::string sockets_unavailable_reason() {
  return "this build found no libzmq 4.3 with cppzmq and libsodium (Debian: libzmq3-dev, cppzmq-dev)";
}

void run_sockets(const RunOptions&, const RankFunction&) { fail(sockets_unavailable_reason()); }

}  // namespace fp8lab

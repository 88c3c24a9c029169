#include "comm/processes/transport.h"

#include <fmt/core.h>

#include "comm/run.h"

namespace fp8lab::processes {

void Transport::check_usable() const {
  check_thread();
  if (broken()) throw RanksLost(fmt::format("{} can no longer be used in this process: {}", name_, broken_));
}

}  // namespace fp8lab::processes

#include "comm/processes/transport.h"

#include <fmt/core.h>

#include "core/check.h"

namespace fp8lab::processes {

void Transport::check_usable() const {
  check_thread();
  if (!broken_.empty()) fail(fmt::format("{} can no longer be used in this process: {}", name_, broken_));
}

}  // namespace fp8lab::processes

#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace fp8lab::comm_test {

/// A TCP port of the loopback interface on which nobody listens; 0 if all are taken.
///
/// Ranks try MASTER_PORT and the 15 ports that follow, so jobs whose ports are close disturb each other. Each call
/// reserves a block of ports, by a UDP socket that stays bound until the process ends, and tests that run side by side
/// get blocks of their own. The blocks lie below the ports that the kernel picks for clients.
inline int free_port() {
  constexpr unsigned kFirst = 10'000, kPorts = 16, kBlocks = 1400, kBlocksOfAProcess = 101;
  static std::atomic<unsigned> next = static_cast<unsigned>(::getpid()) * kBlocksOfAProcess;
  const auto binds = [](int descriptor, unsigned port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  };
  for (unsigned tried = 0; tried < kBlocks; ++tried) {
    const unsigned port = kFirst + next++ % kBlocks * kPorts;
    const int reservation = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool free = binds(reservation, port) && binds(listener, port);
    ::close(listener);
    if (free) return static_cast<int>(port);
    ::close(reservation);
  }
  return 0;
}

}  // namespace fp8lab::comm_test

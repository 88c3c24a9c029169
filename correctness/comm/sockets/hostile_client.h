#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace fp8lab::comm_test {

/// A TCP client of the loopback interface that sends arbitrary bytes.
class HostileClient {
 public:
  /// Connects; tries for some seconds.
  explicit HostileClient(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < deadline) {
      descriptor_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return;
      ::close(std::exchange(descriptor_, -1));
      ::poll(nullptr, 0, 10);
    }
  }
  HostileClient(HostileClient&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  ~HostileClient() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  bool connected() const { return descriptor_ >= 0; }

  void say(std::string_view bytes) const { ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// The next bytes from the other side, at most `most`; fewer if it closes the connection or takes longer than a
  /// second.
  std::string hear(std::size_t most) const {
    std::string heard;
    std::array<char, 4096> buffer{};
    pollfd readable{descriptor_, POLLIN, 0};
    while (heard.size() < most && ::poll(&readable, 1, 1000) > 0) {
      const ssize_t got = ::recv(descriptor_, buffer.data(), std::min(buffer.size(), most - heard.size()), 0);
      if (got <= 0) break;
      heard.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return heard;
  }
  /// Whether the other side closes the connection within `seconds`, whatever it sends before.
  bool is_dropped(double seconds) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    std::array<char, 4096> buffer{};
    while (std::chrono::steady_clock::now() < deadline) {
      pollfd readable{descriptor_, POLLIN, 0};
      if (::poll(&readable, 1, 50) > 0 && ::recv(descriptor_, buffer.data(), buffer.size(), 0) <= 0) return true;
    }
    return false;
  }

 private:
  int descriptor_ = -1;
};

}  // namespace fp8lab::comm_test

#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace fp8lab::sockets {

/// When to give up waiting.
struct Patience {
  std::chrono::steady_clock::time_point deadline;
  std::stop_token stop;

  /// At most `seconds` from now, and no longer than this.
  Patience at_most(double seconds) const;
  bool over() const { return stop.stop_requested() || std::chrono::steady_clock::now() >= deadline; }
};

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;

  int port() const;
  void set_port(int port);
  bool is_loopback() const;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// What `host` means, with `port`. Throws Error where it means nothing.
std::vector<Address> resolve(const std::string& host, int port);

/// Whether `host` is spelled as one that only this machine reaches. A name that means such an address here may mean another
/// elsewhere, as a machine's own name does.
bool names_loopback(const std::string& host);

/// One TCP socket, which never blocks by itself.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();

  explicit operator bool() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

  /// Listens at `address`, port 0 meaning any. No socket if the port is taken or that is no address of this machine.
  static Socket listen(const Address& address);
  /// The same at all addresses of this machine.
  static Socket listen_everywhere(int port);
  /// A connection, or no socket where nobody answers.
  static Socket connect(const Address& address, const Patience& patience);
  /// Between two attempts to reach somebody who may not listen yet.
  static void pause();
  /// The next to connect, or no socket.
  Socket accept(const Patience& patience);

  Address own_address() const;
  Address peer_address() const;

  /// All of it, or false where the other side is gone or patience is over.
  bool send(std::span<const std::byte> bytes, const Patience& patience);
  bool receive(std::span<std::byte> bytes, const Patience& patience);
  template <class Plain>
  bool send(const Plain& plain, const Patience& patience) {
    return send(std::as_bytes(std::span(&plain, 1)), patience);
  }
  template <class Plain>
  bool receive(Plain& plain, const Patience& patience) {
    return receive(std::as_writable_bytes(std::span(&plain, 1)), patience);
  }

 private:
  /// Whether `events` of poll() came.
  bool wait(short events, const Patience& patience) const;

  int descriptor_ = -1;
};

/// What a value of errno says.
std::string error_text(int error);

}  // namespace fp8lab::sockets

#include "comm/sockets/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <system_error>

#include "core/check.h"

namespace fp8lab::sockets {
namespace {

using std::chrono::milliseconds;

// How soon a stop from outside is noticed.
constexpr milliseconds kLook(50);

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

Socket make(int family) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket && errno != EAFNOSUPPORT) fail(fmt::format("socket: {}", error_text(errno)));
  return socket;
}

void set(const Socket& socket, int level, int option, int value = 1) {
  ::setsockopt(socket.descriptor(), level, option, &value, sizeof value);
}

template <class Plain>
Address address_of(const Plain& plain) {
  Address address{.bytes = sizeof plain};
  std::memcpy(&address.storage, &plain, sizeof plain);
  return address;
}

/// As a machine without IPv6 takes it, where a socket of IPv6 speaks with one of IPv4.
Address unmapped(const Address& address) {
  if (address.storage.ss_family != AF_INET6) return address;
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address.storage);
  if (!IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return address;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  std::memcpy(&four.sin_addr, &six.sin6_addr.s6_addr[12], sizeof four.sin_addr);
  return address_of(four);
}

}  // namespace

std::string error_text(int error) { return std::generic_category().message(error); }

Patience Patience::at_most(double seconds) const {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                            std::chrono::duration<double>(seconds));
  return {.deadline = std::min(deadline, limit), .stop = stop};
}

int Address::port() const {
  const bool six = storage.ss_family == AF_INET6;
  return ntohs(six ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

void Address::set_port(int port) {
  const bool six = storage.ss_family == AF_INET6;
  (six ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port : reinterpret_cast<sockaddr_in&>(storage).sin_port) =
      htons(static_cast<std::uint16_t>(port));
}

bool Address::is_loopback() const {
  if (storage.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

bool names_loopback(const std::string& host) {
  sockaddr_in four{};
  four.sin_family = AF_INET;
  if (::inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1) return address_of(four).is_loopback();
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  if (::inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) == 1) return address_of(six).is_loopback();
  return host == "localhost";
}

std::vector<Address> resolve(const std::string& host, int port) {
  // Not AI_ADDRCONFIG, to which loopback is no address: what this machine cannot use is passed over later.
  const addrinfo hints{.ai_flags = 0,
                       .ai_family = AF_UNSPEC,
                       .ai_socktype = SOCK_STREAM,
                       .ai_protocol = 0,
                       .ai_addrlen = 0,
                       .ai_addr = nullptr,
                       .ai_canonname = nullptr,
                       .ai_next = nullptr};
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0)
    fail(fmt::format("MASTER_ADDR={} is no host: {}", host, ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    Address& address = addresses.emplace_back();
    std::copy_n(reinterpret_cast<const std::byte*>(entry->ai_addr), entry->ai_addrlen,
                reinterpret_cast<std::byte*>(&address.storage));
    address.bytes = entry->ai_addrlen;
    address.set_port(port);
  }
  return addresses;
}

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Socket Socket::listen(const Address& address) {
  Socket socket = make(address.storage.ss_family);
  if (!socket) return {};
  set(socket, SOL_SOCKET, SO_REUSEADDR);
  if (address.storage.ss_family == AF_INET6) set(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(socket.descriptor(), address.get(), address.bytes) == 0 && ::listen(socket.descriptor(), SOMAXCONN) == 0)
    return socket;
  if (errno != EADDRINUSE && errno != EADDRNOTAVAIL)
    fail(fmt::format("cannot listen at port {}: {}", address.port(), error_text(errno)));
  return {};
}

Socket Socket::listen_everywhere(int port) {
  Address address;
  if (make(AF_INET6)) {
    sockaddr_in6 six{};  // of IPv4, too
    six.sin6_family = AF_INET6;
    address = address_of(six);
  } else {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    address = address_of(four);
  }
  address.set_port(port);
  return listen(address);
}

Socket Socket::connect(const Address& address, const Patience& patience) {
  Socket socket = make(address.storage.ss_family);
  if (!socket) return {};
  if (::connect(socket.descriptor(), address.get(), address.bytes) != 0) {
    if (errno != EINPROGRESS || !socket.wait(POLLOUT, patience)) return {};
    int error = 0;
    socklen_t bytes = sizeof error;
    ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) return {};
  }
  set(socket, IPPROTO_TCP, TCP_NODELAY);
  return socket;
}

void Socket::pause() { ::poll(nullptr, 0, static_cast<int>(kLook.count())); }

Socket Socket::accept(const Patience& patience) {
  while (wait(POLLIN, patience)) {
    Socket socket(::accept4(descriptor_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) continue;  // who came has gone again
    set(socket, IPPROTO_TCP, TCP_NODELAY);
    return socket;
  }
  return {};
}

Address Socket::own_address() const {
  Address address;
  address.bytes = sizeof address.storage;
  ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes);
  return address;
}

Address Socket::peer_address() const {
  Address address;
  address.bytes = sizeof address.storage;
  ::getpeername(descriptor_, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes);
  return unmapped(address);
}

bool Socket::send(std::span<const std::byte> bytes, const Patience& patience) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0)
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    else if (!would_block() || !wait(POLLOUT, patience))
      return false;
  }
  return true;
}

bool Socket::receive(std::span<std::byte> bytes, const Patience& patience) {
  while (!bytes.empty()) {
    const ssize_t received = ::recv(descriptor_, bytes.data(), bytes.size(), 0);
    if (received > 0)
      bytes = bytes.subspan(static_cast<std::size_t>(received));
    else if (received == 0 || !would_block() || !wait(POLLIN, patience))
      return false;
  }
  return true;
}

bool Socket::wait(short events, const Patience& patience) const {
  while (!patience.over()) {
    const auto left = std::chrono::ceil<milliseconds>(patience.deadline - std::chrono::steady_clock::now());
    pollfd watched{descriptor_, events, 0};
    if (::poll(&watched, 1, static_cast<int>(std::clamp(left, milliseconds(0), kLook).count())) > 0) return true;
  }
  return false;
}

}  // namespace fp8lab::sockets

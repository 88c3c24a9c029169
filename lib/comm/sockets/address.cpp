#include "comm/sockets/address.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <memory>

#include "core/check.h"

namespace fp8lab::sockets {
namespace {

std::string numeric(const sockaddr* address, socklen_t bytes) {
  std::array<char, NI_MAXHOST> host{};
  if (::getnameinfo(address, bytes, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return unmapped(host.data());
}

std::string end_of(int descriptor, decltype(::getpeername)* end) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  return end(descriptor, address, &bytes) == 0 ? numeric(address, bytes) : std::string();
}

}  // namespace

std::vector<std::string> resolve(const std::string& host) {
  // AI_ADDRCONFIG is not set, because it leaves out loopback addresses. Addresses that this machine cannot use are
  // skipped later.
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0)
    fail(fmt::format("MASTER_ADDR={} is no host: {}", host, ::gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next)
    if (std::string address = numeric(entry->ai_addr, entry->ai_addrlen); !address.empty())
      addresses.push_back(std::move(address));
  if (addresses.empty()) fail(fmt::format("MASTER_ADDR={} has no address", host));
  return addresses;
}

bool is_one_address(const std::string& text) {
  in_addr four{};
  if (::inet_pton(AF_INET, text.c_str(), &four) == 1) return four.s_addr != INADDR_ANY;
  in6_addr six{};
  const std::string unscoped = text.substr(0, text.find('%'));
  return ::inet_pton(AF_INET6, unscoped.c_str(), &six) == 1 && !IN6_IS_ADDR_UNSPECIFIED(&six);
}

bool is_loopback(const std::string& address) {
  in_addr four{};
  if (::inet_pton(AF_INET, address.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == IN_LOOPBACKNET;
  in6_addr six{};
  return ::inet_pton(AF_INET6, address.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

bool names_loopback(const std::string& host) { return host == "localhost" || is_loopback(host); }

std::string endpoint(const std::string& address, int port) {
  const bool six = address.find(':') != std::string::npos;
  return fmt::format("tcp://{}{}{}:{}", six ? "[" : "", address, six ? "]" : "", port);
}

std::string unmapped(std::string_view address) {
  constexpr std::string_view kMapped = "::ffff:";
  const bool mapped = address.starts_with(kMapped) && address.find('.') != std::string_view::npos;
  return std::string(mapped ? address.substr(kMapped.size()) : address);
}

std::string own_address(int descriptor) { return end_of(descriptor, ::getsockname); }
std::string peer_address(int descriptor) { return end_of(descriptor, ::getpeername); }

}  // namespace fp8lab::sockets

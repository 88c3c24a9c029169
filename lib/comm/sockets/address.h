#pragma once

#include <string>
#include <vector>

namespace fp8lab::sockets {

/// The numeric addresses that `host` means, in the resolver's order. Throws Error where it means none.
std::vector<std::string> resolve(const std::string& host);

/// Whether this is the numeric address of one interface.
bool is_one_address(const std::string& text);

/// Whether a numeric address is one that only this machine reaches.
bool is_loopback(const std::string& address);

/// Whether `host` is spelled as one that only this machine reaches. A name that means such an address here may mean
/// another elsewhere, as a machine's own name does.
bool names_loopback(const std::string& host);

/// "tcp://127.0.0.1:29500", "tcp://[::1]:29500". An address of "*" means every interface.
std::string endpoint(const std::string& address, int port);

/// "127.0.0.1:4711": the other end of a connected socket; empty where it is gone.
std::string peer_of(int descriptor);

/// An IPv4 address that a socket of IPv6 wrote as ::ffff:a.b.c.d, as IPv4 writes it; others as they are.
std::string unmapped(const std::string& address);

}  // namespace fp8lab::sockets

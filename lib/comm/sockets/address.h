#pragma once

#include <string>
#include <vector>

namespace fp8lab::sockets {

/// The numeric addresses of `host`, in the resolver's order. Throws Error if there is none.
std::vector<std::string> resolve(const std::string& host);

/// True if `text` is the numeric address of one interface.
bool is_one_address(const std::string& text);

/// True if a numeric address can be reached only from this machine.
bool is_loopback(const std::string& address);

/// True if `host` is written as a loopback address or as localhost. Another name that resolves to a loopback address
/// here, as a machine's own name may, can resolve to another address elsewhere.
bool names_loopback(const std::string& host);

/// "tcp://127.0.0.1:29500", "tcp://[::1]:29500". An address of "*" means every interface.
std::string endpoint(const std::string& address, int port);

/// The address and port of a connected socket's other end, "127.0.0.1:4711"; empty if the connection is gone.
std::string peer_of(int descriptor);

/// Converts an IPv4 address that an IPv6 socket wrote as ::ffff:a.b.c.d to IPv4 notation; returns other addresses
/// unchanged.
std::string unmapped(const std::string& address);

}  // namespace fp8lab::sockets

#pragma once

#include <string>
#include <string_view>
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

/// "tcp://127.0.0.1:29500", "tcp://[::1]:29500". An address of "*" means every interface, port 0 any free port.
std::string endpoint(const std::string& address, int port);

/// A numeric address; an IPv4 address as an IPv6 socket writes it, ::ffff:a.b.c.d, in IPv4 notation.
std::string unmapped(std::string_view address);

/// The numeric addresses of the two ends of a connected socket; empty if the connection is gone.
std::string own_address(int descriptor);
std::string peer_address(int descriptor);

}  // namespace fp8lab::sockets

#pragma once

#include <string>

namespace fp8lab::sockets {

/// A secret that only processes of this user on this machine can read: the content of `folder`/key. The first process
/// that asks for it makes folder and file. `folder`: "/tmp/fp8lab-0" of user 0, if it is empty. Throws Error if there
/// is no such file and none can be made, or if somebody else could read or write it.
std::string user_key(std::string folder = {});

}  // namespace fp8lab::sockets

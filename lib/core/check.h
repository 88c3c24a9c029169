#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace fp8lab {

/// The exception type of every module. The message names the operation, the value at fault and the rule it breaks.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown if the device cannot provide memory; the message contains the ledger's account.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void fail(const std::string& message);

/// Throws Error with `message` unless `ok`. Build a costly message behind an `if` and call fail() instead.
inline void check(bool ok, std::string_view message) {
  if (!ok) fail(std::string(message));
}

}  // namespace fp8lab

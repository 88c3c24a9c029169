#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace fp8lab {

/// A program to start, and its descriptors.
struct ChildSetup {
  char* const* argv;         ///< argv[0]: a path, or a program of PATH
  char* const* environment;  ///< "NAME=value"; ends with a null pointer, as argv does
  int input_fd, output_fd, errors_fd;
  int exchange_fd = -1;          ///< becomes descriptor kExchangeFd; -1: there is none
  const char* folder = nullptr;  ///< its working directory; null: this process's
};

/// The descriptor of the request and of the result, in the process that runs an arm.
inline constexpr int kExchangeFd = 3;

/// Starts a program in a process group of its own, with the default effect of signals that are not ignored. SIGKILL
/// ends it when the thread that called this ends. A program that cannot be started exits with status 127 and a message
/// on its standard error. Returns -1, with errno set, if there is no process for it.
pid_t start_child(const ChildSetup& setup);

/// This process's variables, "NAME=value", with the values of `changed` in place of their own.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& changed);

/// What exec takes: ends with a null pointer, and is valid as long as `words`.
std::vector<char*> pointers_to(std::vector<std::string>& words);

}  // namespace fp8lab

#pragma once

#include <functional>
#include <string>
#include <vector>

namespace fp8lab {

/// How a program that captured() ran has ended.
struct Captured {
  int status = -1;     ///< its exit status; 127: it was not found; -1: a signal ended it, or it took too long
  bool late = false;   ///< it took too long
  std::string output;  ///< its standard output
  std::string errors;  ///< its standard error
};

/// Runs `words`, a program of PATH and its arguments, with `input` on its standard input, for at most `limit_s`
/// seconds. The program and all that it started end with this process, even if SIGKILL ends it. SIGINT, SIGTERM and
/// SIGHUP end them too; after `before_stop` the signal is raised again.
Captured captured(const std::vector<std::string>& words, const std::string& input, double limit_s,
                  const std::function<void()>& before_stop = {});

/// `words`, which begin with a program, or with arguments of env(1), for captured(). A hook of git has variables that
/// name its repository; the program does not see them, so it uses the repository that its arguments name.
std::vector<std::string> outside_of_repositories(std::vector<std::string> words);

}  // namespace fp8lab

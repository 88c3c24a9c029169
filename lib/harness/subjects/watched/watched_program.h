#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fp8lab {

/// A program to run, as a shell would, with further environment variables.
struct WatchedProgram {
  std::vector<std::string> words;  ///< a program of PATH, and its arguments
  std::map<std::string, std::string> environment;
  std::string folder;               ///< its working directory; empty: this program's
  std::optional<double> timeout_s;  ///< how long it may run; without a value as long as it likes
  /// Between SIGTERM and SIGKILL. torchrun sends SIGTERM to its ranks, and SIGKILL half a minute later.
  std::chrono::milliseconds grace = std::chrono::seconds(35);
  bool kills_after_stop = false;  ///< after a signal to stop, too, SIGKILL follows; false: at the second signal
  bool reads_input = true;        ///< false: its standard input is empty
  bool output_to_errors = false;  ///< its standard output goes to standard error, as this program prints JSON
};

/// How it ended.
struct WatchedEnd {
  int status = -1;         ///< its exit status; -1: a signal ended it
  int signal = 0;          ///< the signal that ended it; 0: none
  bool late = false;       ///< it was ended because it took longer than its limit
  int interrupted_by = 0;  ///< the signal by which a user stopped this program; 0: none
};

/// Runs the program until it ends. Its output goes to this program's streams. A signal to this program to stop
/// is passed on. A program that takes too long gets SIGTERM, and later SIGKILL. Everything that it started ends with
/// it, or with this process. Throws Error if no process can be started.
WatchedEnd run_watched(const WatchedProgram& program);

/// "exit status 3", "SIGKILL", "it took longer than 60 s": of an end that is not status 0.
std::string words_of(const WatchedEnd& end, const WatchedProgram& program);

}  // namespace fp8lab

#pragma once

#include <csignal>

namespace fp8lab {

/// While it lives, SIGINT, SIGTERM, SIGHUP and SIGCHLD wake a poll() instead of doing what they did, unless the first
/// three were ignored, and writing to a closed pipe or over a file-size limit is an error code instead of a death. One
/// at a time per process.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// One that lives until the process has ended, for a program's main path. A signal that comes after the last child
  /// and before the exit would otherwise end the process with results half written, or with another exit code than it
  /// has printed.
  static SignalWatch& until_exit();

  /// Readable after any watched signal.
  int fd() const;
  void clear();

  /// How often the user asked to stop, and by which signal first (0: none).
  int stop_requests() const;
  int first_stop_signal() const;

 private:
  static constexpr int kCount = 6;
  struct sigaction saved_[kCount];
};

}  // namespace fp8lab

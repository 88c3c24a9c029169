#pragma once

#include <chrono>
#include <csignal>

namespace fp8lab {

/// While it lives, SIGINT, SIGTERM, SIGHUP and SIGCHLD wake a poll() instead of having their usual effect; of the first
/// three, those that were ignored stay ignored. A write to a closed pipe or beyond the file-size limit returns an error
/// instead of ending the process. At most one object per process may exist.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// An object that lives until the process ends, for the main path of a program. Without it, a signal between the end
  /// of the last child and the exit would end the process with results half written, or with another exit code than it
  /// printed.
  static SignalWatch& until_exit();

  /// A descriptor that is readable after any watched signal.
  int fd() const;
  /// Makes fd() unreadable until the next signal. Counts stay.
  void drain();

  /// Waits until a stop is requested, for at most this time.
  void wait_for_stop(std::chrono::milliseconds longest);

  /// The number of SIGINT, SIGTERM and SIGHUP received, and the first of them (0: none).
  int stop_requests() const;
  int first_stop_signal() const;

 private:
  static constexpr int kCount = 6;
  struct sigaction saved_[kCount];
};

}  // namespace fp8lab

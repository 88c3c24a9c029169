#include "harness/run/signal_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

#include "core/check.h"

namespace fp8lab {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGPIPE, SIGXFSZ};

int wake_pipe[2] = {-1, -1};
volatile sig_atomic_t stop_count = 0;
volatile sig_atomic_t first_stop = 0;

void on_signal(int signal) {
  const int saved_errno = errno;
  if (signal != SIGCHLD) {
    if (first_stop == 0) first_stop = signal;
    stop_count = stop_count + 1;
  }
  const char byte = 1;
  (void)!::write(wake_pipe[1], &byte, 1);
  errno = saved_errno;
}

}  // namespace

SignalWatch::SignalWatch() {
  check(wake_pipe[0] < 0, "SignalWatch: one is alive already");
  check(::pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK) == 0, "SignalWatch: no pipe can be made");
  stop_count = 0;
  first_stop = 0;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action{};
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    action.sa_handler = kSignals[i] == SIGPIPE || kSignals[i] == SIGXFSZ ? SIG_IGN : on_signal;
    ::sigaction(kSignals[i], &action, &saved_[i]);
    // Signals that nohup, or a shell that runs the program in the background, has set to be ignored stay ignored.
    if (saved_[i].sa_handler == SIG_IGN && kSignals[i] != SIGCHLD) ::sigaction(kSignals[i], &saved_[i], nullptr);
  }
}

SignalWatch::~SignalWatch() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &saved_[i], nullptr);
  ::close(wake_pipe[0]);
  ::close(wake_pipe[1]);
  wake_pipe[0] = wake_pipe[1] = -1;
}

SignalWatch& SignalWatch::until_exit() {
  static SignalWatch* const watch = new SignalWatch;  // never destroyed: handlers outlast static destructors
  return *watch;
}

int SignalWatch::fd() const { return wake_pipe[0]; }

void SignalWatch::drain() {
  char buffer[256];
  while (::read(wake_pipe[0], buffer, sizeof buffer) > 0) {
  }
}

void SignalWatch::wait_for_stop(std::chrono::milliseconds longest) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto deadline = now() + longest;
  while (stop_requests() == 0 && now() < deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now());
    pollfd woken{.fd = fd(), .events = POLLIN, .revents = 0};
    ::poll(&woken, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    drain();  // the byte of a SIGCHLD
  }
}

int SignalWatch::stop_requests() const { return stop_count; }
int SignalWatch::first_stop_signal() const { return first_stop; }

}  // namespace fp8lab

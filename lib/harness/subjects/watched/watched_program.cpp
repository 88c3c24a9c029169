#include "harness/subjects/watched/watched_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "core/check.h"
#include "harness/run/limits.h"
#include "harness/run/signal_watch.h"
#include "harness/subjects/supervised_child.h"

namespace fp8lab {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLongestWait{500};

[[noreturn]] void fail_to_start(int error) {
  fail(fmt::format("watch: no process: {}", with_limits(std::strerror(error))));
}

}  // namespace

WatchedEnd run_watched(const WatchedProgram& program) {
  SignalWatch& signals = SignalWatch::until_exit();
  std::vector<std::string> words = program.words, variables = environment_with(program.environment);
  const std::vector<char*> argv = pointers_to(words), environment = pointers_to(variables);
  // The program is in a process group of its own: reading from the terminal would stop it.
  const bool is_empty = !program.reads_input || ::isatty(STDIN_FILENO) == 1;
  const int input = is_empty ? ::open("/dev/null", O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
  SupervisedChild child({.argv = argv.data(),
                         .environment = environment.data(),
                         .input_fd = input,
                         .output_fd = program.output_to_errors ? STDERR_FILENO : STDOUT_FILENO,
                         .errors_fd = STDERR_FILENO,
                         .folder = program.folder.empty() ? nullptr : program.folder.c_str()});
  const int error = errno;
  if (is_empty) ::close(input);
  if (!child.started()) fail_to_start(error);
  WatchedEnd out;
  std::optional<Clock::time_point> deadline, killing;
  if (program.timeout_s)
    deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*program.timeout_s));
  int stops = 0;
  std::optional<int> status;
  while (!(status = child.ended())) {
    pollfd woken[] = {{.fd = signals.fd(), .events = POLLIN, .revents = 0},
                      {.fd = child.fd(), .events = POLLIN, .revents = 0}};
    ::poll(woken, 2, static_cast<int>(kLongestWait.count()));
    signals.drain();
    if (signals.stop_requests() > stops) {
      out.interrupted_by = signals.first_stop_signal();
      child.signal(stops == 0 ? out.interrupted_by : SIGKILL);  // the second request does not wait
      stops = signals.stop_requests();
      if (program.kills_after_stop && !killing) killing = Clock::now() + program.grace;
    }
    const Clock::time_point now = Clock::now();
    if (deadline && now >= *deadline && !out.late) {
      out.late = true;
      killing = now + program.grace;
      child.signal(SIGTERM);
    }
    if (killing && now >= *killing) child.signal(SIGKILL);
  }
  if (*status < 0) fail_to_start(-*status);
  if (WIFEXITED(*status)) out.status = WEXITSTATUS(*status);
  if (WIFSIGNALED(*status)) out.signal = WTERMSIG(*status);
  return out;
}

std::string words_of(const WatchedEnd& end, const WatchedProgram& program) {
  if (end.late) return fmt::format("it took longer than {:g} s", program.timeout_s.value_or(0));
  if (end.signal != 0) {
    const char* abbreviation = ::sigabbrev_np(end.signal);
    return abbreviation ? fmt::format("SIG{}", abbreviation) : fmt::format("signal {}", end.signal);
  }
  if (end.status == 127) return fmt::format("exit status 127: is there a program {}?", program.words.front());
  return fmt::format("exit status {}", end.status);
}

}  // namespace fp8lab

#include "harness/run/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <initializer_list>

namespace fp8lab {
namespace {

/// Blocks all signals while it lives. Between fork and exec a child has its parent's handlers, which would swallow a
/// SIGTERM that arrives there.
class SignalsHeldBack {
 public:
  SignalsHeldBack() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeldBack() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeldBack(const SignalsHeldBack&) = delete;
  SignalsHeldBack& operator=(const SignalsHeldBack&) = delete;

 private:
  sigset_t before_;
};

/// Resets signal handlers to their defaults; ignored signals stay ignored.
void drop_handlers() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action{};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    ::sigaction(signal, &action, nullptr);
  }
}

void write_text(int fd, const char* text) { (void)!::write(fd, text, std::strlen(text)); }

/// Runs in the child between fork and exec, so it may only make async-signal-safe calls. Signals are blocked on entry
/// and unblocked here.
[[noreturn]] void become_child(const ChildSetup& setup, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent ended before prctl
  // An expected crash should not spend seconds on a core file.
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  drop_handlers();
  for (const int ignored : {SIGPIPE, SIGXFSZ}) ::signal(ignored, SIG_DFL);
  sigset_t no_signals;
  sigemptyset(&no_signals);
  ::sigprocmask(SIG_SETMASK, &no_signals, nullptr);
  // Duplicate the descriptors above the targets first, so that no dup2 closes a descriptor that is still needed.
  const auto above = [](int fd) { return fd < 0 ? -1 : ::fcntl(fd, F_DUPFD_CLOEXEC, kExchangeFd + 1); };
  const int input = above(setup.input_fd), output = above(setup.output_fd), errors = above(setup.errors_fd);
  const int exchange = above(setup.exchange_fd);
  if (::dup2(input, STDIN_FILENO) >= 0 && ::dup2(output, STDOUT_FILENO) >= 0 && ::dup2(errors, STDERR_FILENO) >= 0 &&
      (setup.exchange_fd < 0 || ::dup2(exchange, kExchangeFd) >= 0) &&
      (setup.folder == nullptr || ::chdir(setup.folder) == 0))
    ::execvpe(setup.argv[0], setup.argv, setup.environment);
  const char* reason = ::strerrordesc_np(errno);
  const int descriptor = errors >= 0 ? errors : setup.errors_fd;
  write_text(descriptor, "cannot start ");
  write_text(descriptor, setup.argv[0]);
  write_text(descriptor, ": ");
  if (reason) write_text(descriptor, reason);
  ::_exit(127);
}

}  // namespace

pid_t start_child(const ChildSetup& setup) {
  const pid_t parent = ::getpid();
  const SignalsHeldBack held_back;
  const pid_t child = ::fork();
  if (child == 0) become_child(setup, parent);
  // Parent and child both call this, so that the group exists whichever of them runs first.
  if (child > 0) ::setpgid(child, child);
  return child;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& changed) {
  std::vector<std::string> variables;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (!changed.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : changed) variables.push_back(fmt::format("{}={}", name, value));
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace fp8lab

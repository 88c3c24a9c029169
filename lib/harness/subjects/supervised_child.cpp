#include "harness/subjects/supervised_child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

namespace fp8lab {
namespace {

constexpr int kLine = STDIN_FILENO;  // in the supervisor
constexpr int kNextLookMs = 20;

/// The parent of process `pid`; 0 if there is no such process.
pid_t parent_of(const std::string& pid) {
  char path[64], text[512];
  std::snprintf(path, sizeof path, "/proc/%.16s/stat", pid.c_str());
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t n = ::read(file, text, sizeof text - 1);
  ::close(file);
  text[n > 0 ? n : 0] = 0;
  const char* const name_end = std::strrchr(text, ')');  // "7 (a name) S 1 ..."
  return name_end != nullptr && std::strlen(name_end) > 4 ? std::atoi(name_end + 4) : 0;
}

/// Sends SIGKILL to the children of this process. False if it may end none of them, as programs of other users.
bool kill_children() {
  namespace fs = std::filesystem;
  bool any = false;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name[0] >= '1' && name[0] <= '9' && parent_of(name) == ::getpid())
      any |= ::kill(std::atoi(name.c_str()), SIGKILL) == 0;
  }
  return any;
}

/// The supervisor. All signals are blocked.
[[noreturn]] void supervise(const ChildSetup& setup, int line) {
  ::setpgid(0, 0);  // signals to the group of its parent do not end it
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::signal(SIGCHLD, SIG_DFL);  // if it were ignored, no status would come
  const pid_t child = start_child(setup);
  const int error = errno;
  ::dup2(line, kLine);
  ::close_range(kLine + 1, ~0U, 0);  // also its copies of locks, and of the lines of others
  const auto report = [](int status) { (void)!::send(kLine, &status, sizeof status, MSG_NOSIGNAL); };
  if (child < 0) {
    report(-error);
    ::_exit(1);
  }
  sigset_t changes;
  sigemptyset(&changes);
  sigaddset(&changes, SIGCHLD);
  const int changed = ::signalfd(-1, &changes, SFD_CLOEXEC | SFD_NONBLOCK);
  bool has_ended = false, ends_all = false;
  for (;;) {
    int status = 0;
    pid_t one = 0;
    while ((one = ::waitpid(-1, &status, WNOHANG)) > 0)
      if (one == child) {
        has_ended = ends_all = true;
        report(status);
      }
    if (one < 0 || (ends_all && !kill_children())) ::_exit(0);  // none is left
    pollfd fds[] = {{.fd = changed, .events = POLLIN, .revents = 0},
                    {.fd = ends_all ? -1 : kLine, .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, ends_all ? kNextLookMs : -1);
    signalfd_siginfo taken;
    while (::read(changed, &taken, sizeof taken) > 0) {
    }
    char signal = 0;
    const ssize_t n = ends_all ? -1 : ::recv(kLine, &signal, 1, MSG_DONTWAIT);
    if (n == 0) signal = SIGKILL;  // the parent has ended
    if (n >= 0) ends_all = signal == SIGKILL;
    if (n >= 0 && !has_ended) ::kill(-child, signal);
  }
}

}  // namespace

SupervisedChild::SupervisedChild(const ChildSetup& setup) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  supervisor_ = ::fork();
  if (supervisor_ == 0) supervise(setup, ends[1]);
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::close(ends[1]);
  line_ = ends[0];
  errno = error;
}

SupervisedChild::~SupervisedChild() {
  if (line_ >= 0) ::close(line_);
  while (supervisor_ > 0 && ::waitpid(supervisor_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void SupervisedChild::signal(int number) const {
  const char byte = static_cast<char>(number);
  (void)!::send(line_, &byte, sizeof byte, MSG_NOSIGNAL);
}

std::optional<int> SupervisedChild::ended() {
  if (status_) return status_;
  int status = 0;
  const ssize_t n = ::recv(line_, &status, sizeof status, MSG_DONTWAIT);
  if (n == sizeof status) status_ = status;
  const bool waits = n < 0 && (errno == EAGAIN || errno == EINTR);
  if (!status_ && !waits) status_ = SIGKILL;  // something ended the supervisor, and the program with it
  return status_;
}

}  // namespace fp8lab

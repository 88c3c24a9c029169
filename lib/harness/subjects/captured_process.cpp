#include "harness/subjects/captured_process.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>

#include "harness/subjects/supervised_child.h"

namespace fp8lab {
namespace {

/// A file in memory, so that neither process waits for the other while one of them writes.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& text = {}) : fd_(::memfd_create("captured", MFD_CLOEXEC)) {
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t n = ::write(fd_, text.data() + done, text.size() - done);
      if (n < 0 && errno != EINTR) break;
      if (n > 0) done += static_cast<std::size_t>(n);
    }
    ::lseek(fd_, 0, SEEK_SET);
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int fd() const { return fd_; }
  std::string text() const {
    std::string out;
    std::array<char, 4096> buffer;
    ::lseek(fd_, 0, SEEK_SET);
    for (ssize_t n = 0; (n = ::read(fd_, buffer.data(), buffer.size())) > 0 || (n < 0 && errno == EINTR);)
      if (n > 0) out.append(buffer.data(), static_cast<std::size_t>(n));
    return out;
  }

 private:
  int fd_;
};

/// While it lives, signals that ask this process to stop wait until they are taken. Those that are ignored stay so.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction now{};
      ::sigaction(signal, nullptr, &now);
      if (now.sa_handler != SIG_IGN) sigaddset(&set_, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~StopSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Waits for a signal, for some milliseconds. Returns it, or 0.
  int take() const {
    const timespec longest{.tv_sec = 0, .tv_nsec = 5'000'000};
    const int signal = ::sigtimedwait(&set_, nullptr, &longest);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t set_{}, before_{};
};

}  // namespace

Captured captured(const std::vector<std::string>& words, const std::string& input_text, double limit_s,
                  const std::function<void()>& before_stop) {
  using Clock = std::chrono::steady_clock;
  const MemoryFile input(input_text), output, errors;
  Captured out;
  int stopped_by = 0;
  {
    const StopSignals signals;
    std::vector<std::string> owned = words;
    const std::vector<char*> argv = pointers_to(owned);
    SupervisedChild child({.argv = argv.data(),
                           .environment = ::environ,
                           .input_fd = input.fd(),
                           .output_fd = output.fd(),
                           .errors_fd = errors.fd()});
    if (!child.started()) return out;
    const auto deadline = Clock::now() + std::chrono::duration<double>(limit_s);
    std::optional<int> status;
    while (!(status = child.ended())) {
      const int signal = signals.take();
      if (stopped_by == 0) stopped_by = signal;
      if (out.late || (stopped_by == 0 && Clock::now() < deadline)) continue;
      out.late = true;
      child.signal(SIGKILL);
    }
    if (*status >= 0 && !out.late && WIFEXITED(*status)) out.status = WEXITSTATUS(*status);
  }
  if (stopped_by != 0) {
    if (before_stop) before_stop();
    ::raise(stopped_by);
  }
  out.output = output.text();
  out.errors = errors.text();
  return out;
}

std::vector<std::string> outside_of_repositories(std::vector<std::string> words) {
  std::vector<std::string> out{"/usr/bin/env"};
  for (const char* name : {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY",
                           "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX"})
    out.insert(out.end(), {"-u", name});
  out.insert(out.end(), words.begin(), words.end());
  return out;
}

}  // namespace fp8lab

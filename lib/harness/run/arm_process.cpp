#include "harness/run/arm_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "harness/cell/metrics.h"
#include "harness/cell/temporary_folder.h"
#include "harness/results/json_codec.h"
#include "harness/run/child_process.h"
#include "harness/run/limits.h"

namespace fp8lab {
namespace {

constexpr std::size_t kTailBytes = 4096;
constexpr char kGo = 1;

/// Gates compare numbers, so a figure in another unit would pass or fail for nothing. Throws Error.
void check_units(const std::map<std::string, MetricValue>& metrics) {
  for (const auto& [name, figure] : metrics) {
    const Metric* const known = find_metric(name);
    if (known == nullptr) fail(fmt::format("there is no metric '{}'; `fp8lab metrics` lists them", name));
    if (figure.unit != known->unit)
      fail(fmt::format("{} is in '{}'; its unit is '{}'", name, figure.unit, known->unit));
  }
}

[[noreturn]] void fail_with_errno(const char* what) { fail(fmt::format("{}: {}", what, std::strerror(errno))); }

[[noreturn]] void fail_to_start(const char* what) {
  fail(fmt::format("an arm's process cannot be started: {}; run fewer at a time (--jobs), or raise the limit",
                   with_limits(fmt::format("{}: {}", what, std::strerror(errno)))));
}

/// Owns a descriptor until released.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// A file in memory. Unlike a pipe it holds a result of any size, so that neither process blocks the other.
int memory_file(const char* name) {
  const int fd = ::memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) fail_to_start("memfd_create");
  return fd;
}

void write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_errno("write");
    done += static_cast<std::size_t>(n);
  }
}

std::string read_all(int fd) {
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_errno("read");
    if (n == 0) return text;
    text.append(buffer, static_cast<std::size_t>(n));
  }
}

std::string signal_name(int signal) {
  const char* abbreviation = ::sigabbrev_np(signal);
  return abbreviation ? fmt::format("SIG{}", abbreviation) : fmt::format("signal {}", signal);
}

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \r\n\t");
  if (end == std::string::npos) return "";
  const std::size_t newline = text.find_last_of('\n', end);
  const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
  return text.substr(begin, std::min<std::size_t>(end - begin + 1, 200));
}

}  // namespace

ArmProcess::ArmProcess(const ArmCommand& command)
    : run_folder_(RunFolder::shared()), folder_(run_folder_->unused_path()), started_(Clock::now()) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail_to_start("socketpair");
  Fd control(ends[0]);
  const Fd input(ends[1]);
  Fd exchange(memory_file("arm"));
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_to_start("pipe");
  Fd output(ends[0]);
  const Fd output_write(ends[1]);
  ::fcntl(output.get(), F_SETFL, O_NONBLOCK);

  std::vector<std::string> words{command.program};
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  std::map<std::string, std::string> changed = command.environment;
  changed[kTemporaryVariable] = folder_.string();
  std::vector<std::string> variables = environment_with(changed);
  const std::vector<char*> argv = pointers_to(words), environment = pointers_to(variables);

  pid_ = start_child({.argv = argv.data(),
                      .environment = environment.data(),
                      .input_fd = input.get(),
                      .output_fd = output_write.get(),
                      .errors_fd = output_write.get(),
                      .exchange_fd = exchange.get()});
  if (pid_ < 0) fail_to_start("fork");
  control_fd_ = control.release();
  exchange_fd_ = exchange.release();
  output_fd_ = output.release();
}

ArmProcess::~ArmProcess() {
  if (!gone_) {
    kill();
    while (::waitpid(pid_, &wait_status_, 0) < 0 && errno == EINTR) {
    }
  }
  ::close(control_fd_);
  ::close(exchange_fd_);
  ::close(output_fd_);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void ArmProcess::start(const CellConfig& cell, Arm arm, Then then) {
  if (!std::exchange(fresh_, false)) {
    // Drop the output of the arm before. The output of a new process is kept: it may say why exec failed.
    drain();
    tail_.clear();
  }
  then_ = then;
  running_ = true;
  limit_s_ = 0;
  started_ = Clock::now();
  if (::ftruncate(exchange_fd_, 0) != 0) fail_with_errno("ftruncate");
  ::lseek(exchange_fd_, 0, SEEK_SET);
  write_all(exchange_fd_, fmt::format("{}\n{}", name(arm), cell_to_json(cell)));
  // Ignore errors: ended() finds a process that has died or whose exec failed.
  (void)!::send(control_fd_, &kGo, sizeof kGo, MSG_NOSIGNAL);
  if (then == Then::kEnd) ::shutdown(control_fd_, SHUT_WR);
}

bool ArmProcess::ready() { return !running_ && then_ == Then::kStay && !reaped(); }

void ArmProcess::drain() {
  char buffer[16384];
  for (int reads = 0; reads < 64; ++reads) {
    const ssize_t n = ::read(output_fd_, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) output_open_ = false;
    if (n <= 0) return;
    tail_.append(buffer, static_cast<std::size_t>(n));
    if (tail_.size() > 2 * kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
  }
}

/// Kills the group and reaps the process if the process has ended; true once that is done.
bool ArmProcess::reaped() {
  if (gone_) return true;
  // Kill the group while the process is still a zombie: after it is reaped its number may name another group.
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
    return false;
  ::kill(-pid_, SIGKILL);
  rusage used{};
  ::wait4(pid_, &wait_status_, 0, &used);
  for (const timeval& time : {used.ru_utime, used.ru_stime})
    processor_seconds_ += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  gone_ = true;
  return true;
}

bool ArmProcess::answered() const {
  char through = 0;
  return ::recv(control_fd_, &through, sizeof through, MSG_DONTWAIT) == sizeof through;
}

bool ArmProcess::ended() {
  if (!running_) return true;
  if (!(then_ == Then::kStay && answered()) && !reaped()) return false;
  running_ = false;
  seconds_ = std::chrono::duration<double>(Clock::now() - started_).count();
  drain();
  if (tail_.size() > kTailBytes) tail_.erase(0, tail_.size() - kTailBytes);
  return true;
}

void ArmProcess::time_out(double limit_s) {
  limit_s_ = limit_s;
  terminate();
}

void ArmProcess::terminate() { end_by(SIGTERM); }
void ArmProcess::kill() { end_by(SIGKILL); }

/// Even if the process has just finished its arm, it is not used for another one: the signal ends it.
void ArmProcess::end_by(int signal) {
  then_ = Then::kEnd;
  ::kill(-pid_, signal);
}

std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  const auto both_blank = [](char a, char b) { return a == ' ' && b == ' '; };
  text.erase(std::unique(text.begin(), text.end(), both_blank), text.end());
  return text;
}

ArmResult ArmProcess::crashed(std::string reason) const {
  ArmResult out;
  out.status = "crashed";
  out.reason = std::move(reason);
  if (const std::string line = last_line(tail_); !line.empty()) out.reason += ": " + line;
  return out;
}

ArmResult ArmProcess::result() const {
  ArmResult out;
  if (!gone_ || (WIFEXITED(wait_status_) && WEXITSTATUS(wait_status_) == 0)) {
    ::lseek(exchange_fd_, 0, SEEK_SET);
    const std::string text = read_all(exchange_fd_);
    try {
      out = text.empty() ? crashed("exited without a result") : arm_from_json(text);
      check_units(out.metrics);
      // The last line of a program of the user's is the cause of its failure, unless it is a ruler.
      const std::string line = last_line(tail_);
      const bool is_text = std::ranges::any_of(line, [](unsigned char c) { return std::isalnum(c) != 0; });
      if (out.status == "crashed" && is_text && out.reason.find(line) == std::string::npos) out.reason += ": " + line;
    } catch (const Error& error) {
      out = crashed(fmt::format("exited with a result that cannot be read: {}", error.what()));
    }
  } else if (limit_s_ > 0) {
    out.status = "timeout";
    out.reason = fmt::format("took longer than {:g} s", limit_s_);
  } else if (WIFSIGNALED(wait_status_)) {
    const int signal = WTERMSIG(wait_status_);
    const std::string_view cause = cause_of_death(signal, processor_seconds_);
    out = crashed(fmt::format("ended by {}{}", signal_name(signal), cause.empty() ? "" : fmt::format(" ({})", cause)));
    out.signal = signal_name(signal);
    // std::bad_alloc in a library's thread or in a noexcept function ends in std::terminate, which aborts.
    if (signal == SIGABRT && tail_.find("std::bad_alloc") != std::string::npos) {
      out.status = "out_of_memory";
      out.reason = with_memory_limits(std::move(out.reason));
    }
  } else {
    out = crashed(fmt::format("exited with status {}", WEXITSTATUS(wait_status_)));
  }
  if (out.status == "crashed") out.reason = with_limits(std::move(out.reason));
  out.seconds = seconds_;
  out.reason = one_line(std::move(out.reason));
  if (out.status != "ok") out.output_tail = tail_;
  return out;
}

}  // namespace fp8lab

#include "harness/run/limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>

#include "core/check.h"

namespace fp8lab {
namespace {

struct Limit {
  int error;  ///< errno of a call that reached the limit
  decltype(RLIMIT_AS) resource;
  std::string_view of;
  std::string_view option;  ///< the option of the shell's `ulimit`
  rlim_t unit;              ///< bytes in which `ulimit` counts, or 1
  std::string_view unit_name;
};

constexpr std::array kLimits{
    Limit{EMFILE, RLIMIT_NOFILE, "open files", "-n", 1, ""},
    Limit{EAGAIN, RLIMIT_NPROC, "processes and threads", "-u", 1, ""},
    Limit{EAGAIN, RLIMIT_AS, "a process's memory", "-v", 1024, " KiB"},  // a thread's stack needs much of it
    Limit{ENOMEM, RLIMIT_AS, "a process's memory", "-v", 1024, " KiB"},
    Limit{ENOMEM, RLIMIT_DATA, "a process's data", "-d", 1024, " KiB"},
    Limit{EFBIG, RLIMIT_FSIZE, "a file's size", "-f", 1024, " KiB"},
};

std::optional<rlim_t> value_of(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  return limit.rlim_cur;
}

/// "; the limit on open files is 16 (`ulimit -n`)" for each limit that `error` may mean.
std::string limits_behind(int error) {
  std::string out;
  for (const Limit& limit : kLimits)
    if (limit.error == error)
      if (const auto value = value_of(limit.resource))
        out += fmt::format("; the limit on {} is {}{} (`ulimit {}`)", limit.of, *value / limit.unit, limit.unit_name,
                           limit.option);
  return out;
}

}  // namespace

std::string with_limits(std::string reason) {
  for (const int error : {EMFILE, EAGAIN, ENOMEM, EFBIG})
    if (reason.find(std::strerror(error)) != std::string::npos) return reason + limits_behind(error);
  return reason;
}

std::string with_memory_limits(std::string reason) { return reason + limits_behind(ENOMEM); }

std::string_view cause_of_death(int signal, double processor_seconds) {
  const auto limit = value_of(RLIMIT_CPU);
  // The kernel may end a process during its last second of processor time, so the time used may be below the limit.
  const bool used_up = limit && processor_seconds > static_cast<double>(*limit) - 1.0;
  if (signal == SIGXCPU || (signal == SIGKILL && used_up))
    return "its processor time is used up; the limit is `ulimit -t`";
  if (signal == SIGXFSZ) return "its result is larger than the limit on files, `ulimit -f`";
  if (signal == SIGKILL) return "usually the kernel, out of memory";
  return "";
}

bool limits_processor_time() { return value_of(RLIMIT_CPU).has_value(); }

void need_descriptors(long count, std::string_view remedy) {
  rlimit limit{};
  const auto needed = static_cast<rlim_t>(count);
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  const rlim_t was = limit.rlim_cur;
  limit.rlim_cur = needed;
  if (needed <= limit.rlim_max && ::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  fail(
      fmt::format("too few file descriptors: the limit on open files is {} (`ulimit -n`), and {} are needed; raise it "
                  "(`ulimit -n {}`), or {}",
                  was, count, count, remedy));
}

}  // namespace fp8lab

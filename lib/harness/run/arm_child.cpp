#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "core/check.h"
#include "core/holder_bytes.h"
#include "harness/results/json_codec.h"
#include "harness/run/arm_process.h"
#include "harness/run/limits.h"
#include "harness/scenario/scenario.h"

// Sanitizers call these functions for their default options; the environment overrides them. Without them a crash would
// end in a report and an exit status instead of the signal that scenarios expect.
extern "C" const char* __asan_default_options();
extern "C" const char* __tsan_default_options();
extern "C" const char* __asan_default_options() {
  return "handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0";
}
extern "C" const char* __tsan_default_options() { return __asan_default_options(); }

namespace fp8lab {
namespace {

ArmResult ended(const char* status, const std::string& reason) {
  ArmResult out;
  out.status = status;
  out.reason = reason;
  return out;
}

/// Waits for the next request; nothing once the parent has closed the socket.
std::optional<std::string> next_request() {
  char go = 0;
  ssize_t n = 0;
  while ((n = ::recv(STDIN_FILENO, &go, sizeof go, 0)) < 0 && errno == EINTR) {
  }
  if (n <= 0) return {};
  std::string text;
  char buffer[4096];
  ::lseek(kExchangeFd, 0, SEEK_SET);
  while ((n = ::read(kExchangeFd, buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR))
    if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
  // Empty the file, which holds the result from here on.
  ::lseek(kExchangeFd, 0, SEEK_SET);
  if (n < 0 || ::ftruncate(kExchangeFd, 0) != 0) return {};
  return text;
}

std::optional<Arm> arm_called(std::string_view wanted) {
  for (const Arm arm : kArms)
    if (name(arm) == wanted) return arm;
  return {};
}

bool write_result(const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(kExchangeFd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    done += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

ArmResult run_arm_guarded(const ArmFunction& arm_function, const CellConfig& cell, Arm arm) {
  try {
    ArmResult result = arm_function(cell, arm);
    // A model of a hundred layers has thousands of holders at its peak. The timeline lists each of them.
    result.peak_by_holder = folded_by_index(result.peak_by_holder);
    return result;
  } catch (const OutOfMemory& error) {
    return ended("out_of_memory", with_memory_limits(error.what()));
  } catch (const std::bad_alloc&) {
    return ended("out_of_memory", with_memory_limits("the host has no memory left"));
  } catch (const std::exception& error) {
    return ended("error", with_limits(error.what()));
  }
}

int run_arms_in_child(const ArmFunction& arm_function) {
  struct stat input{};
  if (::fstat(STDIN_FILENO, &input) != 0 || !S_ISSOCK(input.st_mode)) {
    std::fputs("this command is for fp8lab itself\n", stderr);
    return 2;
  }
  while (const std::optional<std::string> request = next_request()) {
    const std::size_t line = request->find('\n');
    const std::optional<Arm> arm = arm_called(request->substr(0, line));
    if (!arm) return 1;
    const auto read_and_run = [&](const CellConfig&, Arm) {
      return arm_function(cell_from_json(request->substr(line + 1)), *arm);
    };
    if (!write_result(arm_to_json(run_arm_guarded(read_and_run, {}, *arm)))) return 1;
    std::fflush(nullptr);
    constexpr char kThrough = 1;
    ::send(STDIN_FILENO, &kThrough, sizeof kThrough, MSG_NOSIGNAL);
  }
  return 0;
}

}  // namespace fp8lab

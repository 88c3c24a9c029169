#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <new>

#include "core/check.h"
#include "harness/arm_process.h"
#include "harness/holders.h"
#include "harness/json_codec.h"
#include "harness/scenario.h"

// Sanitizers ask these for their options, which the environment overrides. Without them a crash would be a report and an exit
// status instead of the signal that scenarios and verdicts speak of.
extern "C" const char* __asan_default_options();
extern "C" const char* __tsan_default_options();
extern "C" const char* __asan_default_options() {
  return "handle_segv=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:handle_abort=0";
}
extern "C" const char* __tsan_default_options() { return __asan_default_options(); }

namespace fp8lab {
namespace {

constexpr int kResultFd = 3;

ArmResult ended(const char* status, const std::string& reason) {
  ArmResult out;
  out.status = status;
  out.reason = reason;
  return out;
}

bool write_result(const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(kResultFd, text.data() + done, text.size() - done);
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
    // A model of a hundred layers has thousands of holders at its peak; each of them is in the timeline.
    result.peak_by_holder = folded_by_index(result.peak_by_holder);
    return result;
  } catch (const OutOfMemory& error) {
    return ended("out_of_memory", error.what());
  } catch (const std::bad_alloc&) {
    return ended("out_of_memory", "the host has no memory left");
  } catch (const std::exception& error) {
    return ended("error", error.what());
  }
}

int run_arm_in_child(const std::string& arm_name, const ArmFunction& arm_function) {
  std::string text;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) text.append(buffer, n);
  for (const Arm arm : {Arm::kBefore, Arm::kAfter, Arm::kBf16}) {
    if (name(arm) != arm_name) continue;
    const auto read_and_run = [&](const CellConfig&, Arm) { return arm_function(cell_from_json(text), arm); };
    const std::string result = arm_to_json(run_arm_guarded(read_and_run, {}, arm));
    return write_result(result) ? 0 : 1;
  }
  std::fputs("this command is for fp8lab itself\n", stderr);
  return 2;
}

}  // namespace fp8lab

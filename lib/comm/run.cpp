#include "comm/run.h"

#include <fmt/core.h>

namespace fp8lab {

Failure current_failure() {
  try {
    throw;
  } catch (const GroupAborted& error) {
    return {.reason = error.what(), .echo = true};
  } catch (const OutOfMemory& error) {
    return {.reason = error.what(), .out_of_memory = true};
  } catch (const std::bad_alloc& error) {
    return {.reason = error.what(), .out_of_memory = true};
  } catch (const std::exception& error) {
    return {.reason = error.what()};
  } catch (...) {
    return {.reason = "an exception that is no std::exception"};
  }
}

void throw_failure(const Failure& failure, int rank, int ranks) {
  const std::string message = ranks == 1 ? failure.reason : fmt::format("rank {}: {}", rank, failure.reason);
  if (failure.out_of_memory) throw OutOfMemory(message);
  fail(message);
}

void throw_aborted(const Signature& call, std::string_view group, std::string_view reason) {
  throw GroupAborted(fmt::format("{} of group '{}' cannot complete: {}", describe(call), group, reason));
}

std::string text_of(std::chrono::nanoseconds duration) {
  const std::chrono::duration<double> seconds = duration;
  return seconds.count() < 1 ? fmt::format("{:g} ms", seconds.count() * 1000) : fmt::format("{:g} s", seconds.count());
}

}  // namespace fp8lab

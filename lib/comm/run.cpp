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
  } catch (const std::bad_alloc&) {
    return {.reason = "the host has no memory left", .out_of_memory = true};
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
  throw GroupAborted(fmt::format("{} cannot complete: {}", describe(call, group), reason));
}

namespace {

std::string names_of(std::span<const int> world_ranks) {
  std::string ranks;
  for (const int rank : world_ranks) ranks += fmt::format("{}rank {}", ranks.empty() ? "" : " and ", rank);
  return ranks;
}

double seconds_of(std::chrono::nanoseconds timeout) { return std::chrono::duration<double>(timeout).count(); }

}  // namespace

std::string describe_late(std::span<const int> world_ranks, const Signature& call, std::string_view group,
                          std::chrono::nanoseconds timeout) {
  return fmt::format("{} did not come to {} within {:g} s", names_of(world_ranks), describe(call, group),
                     seconds_of(timeout));
}

std::string describe_stalled(std::span<const int> world_ranks, const Signature& call, std::string_view group,
                             std::chrono::nanoseconds timeout) {
  return fmt::format("{} came to {} but did not finish exchanging bytes within {:g} s", names_of(world_ranks),
                     describe(call, group), seconds_of(timeout));
}

std::string describe_left(int world_rank, const Signature& call, std::string_view group) {
  return fmt::format("rank {} has finished without joining {}", world_rank, describe(call, group));
}

std::string describe(const Signature& call, std::string_view group) {
  return fmt::format("{} of group '{}'", describe(call), group);
}

}  // namespace fp8lab

#include "comm/processes/messages.h"

#include <algorithm>
#include <cstring>

namespace fp8lab::processes {
namespace {

struct ShutdownPlain {
  std::int32_t ending = 0;
  std::uint32_t out_of_memory = 0;
  std::uint64_t next_context = 0;
  std::array<char, 2048> reason{};  ///< zero-terminated
};
static_assert(sizeof(ShutdownPlain) == sizeof(ShutdownBytes));

}  // namespace

ShutdownBytes write(const Shutdown& shutdown) {
  ShutdownPlain plain{.ending = static_cast<std::int32_t>(shutdown.ending),
                      .out_of_memory = shutdown.out_of_memory ? 1u : 0u,
                      .next_context = shutdown.next_context};
  std::copy_n(shutdown.reason.begin(), std::min(shutdown.reason.size(), plain.reason.size() - 1), plain.reason.begin());
  ShutdownBytes bytes;
  std::memcpy(bytes.data(), &plain, sizeof plain);
  return bytes;
}

std::optional<Shutdown> read_shutdown(const ShutdownBytes& bytes, std::uint64_t largest_context) {
  ShutdownPlain plain;
  std::memcpy(&plain, bytes.data(), sizeof plain);
  const auto end = std::find(plain.reason.begin(), plain.reason.end(), '\0');
  if (plain.ending < static_cast<std::int32_t>(Ending::kWell) ||
      plain.ending > static_cast<std::int32_t>(Ending::kByEcho) || plain.out_of_memory > 1 ||
      plain.next_context > largest_context + 1 || end == plain.reason.end())
    return std::nullopt;
  return Shutdown{.ending = static_cast<Ending>(plain.ending),
                  .out_of_memory = plain.out_of_memory == 1,
                  .next_context = plain.next_context,
                  .reason = std::string(plain.reason.begin(), end)};
}

bool is_valid(const Call& call, std::uint64_t largest_context) {
  const auto& label = call.signature.label;
  return static_cast<std::size_t>(call.signature.kind) < kCollectiveKinds && call.signature.op <= ReduceOp::kMax &&
         call.next_context <= largest_context + 1 && std::find(label.begin(), label.end(), '\0') != label.end();
}

}  // namespace fp8lab::processes

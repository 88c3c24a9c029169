#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/signature.h"

/// Messages that ranks as processes exchange in addition to the bytes of collectives, over any transport. Only the
/// readers here interpret received bytes. They accept any bytes and return a message whose fields are all in range, or
/// nothing.
namespace fp8lab::processes {

/// How a rank's function ended.
enum class Ending : std::int32_t { kWell, kByDeath, kByFinding, kByEcho };

/// A rank sends this to every other rank when its function has ended.
struct Shutdown {
  Ending ending = Ending::kWell;
  bool out_of_memory = false;
  std::uint64_t next_context = 1;
  std::string reason = {};  ///< truncated if long
};
using ShutdownBytes = std::array<std::byte, 16 + 2048>;
ShutdownBytes write(const Shutdown& shutdown);
std::optional<Shutdown> read_shutdown(const ShutdownBytes& bytes, std::uint64_t largest_context);

/// A rank sends this to the other ranks of a group at the start of a collective, as plain bytes.
struct Call {
  Signature signature;
  std::uint64_t next_context = 1;
};
/// True if a received call may be used: its numbers are in range, and its label is terminated. `next_context` may be
/// one above the largest, which no group gets.
bool is_valid(const Call& call, std::uint64_t largest_context);

}  // namespace fp8lab::processes

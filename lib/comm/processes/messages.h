#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/signature.h"

/// What ranks that are processes write to each other beside the bytes of collectives, over any transport, and the only
/// code that reads it. Readers take any bytes: they return a message all of whose fields are in range, or nothing.
namespace fp8lab::processes {

/// How a rank's function ended.
enum class Ending : std::int32_t { kWell, kByDeath, kByFinding, kByEcho };

/// What a rank tells every other when its function has ended.
struct Shutdown {
  Ending ending = Ending::kWell;
  bool out_of_memory = false;
  std::uint64_t next_context = 1;
  std::string reason = {};  ///< cut short where it is long
};
using ShutdownBytes = std::array<std::byte, 16 + 2048>;
ShutdownBytes write(const Shutdown& shutdown);
std::optional<Shutdown> read_shutdown(const ShutdownBytes& bytes, std::uint64_t largest_context);

/// What a rank tells the others of a group at the start of a collective. Travels as it is.
struct Call {
  Signature signature;
  std::uint64_t next_context = 1;
};
/// Whether a received call may be used: its numbers are in range, and its label ends. The context after the largest is
/// one that no group gets.
bool is_valid(const Call& call, std::uint64_t largest_context);

}  // namespace fp8lab::processes

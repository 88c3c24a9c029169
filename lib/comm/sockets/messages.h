#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// What ranks write to each other over TCP, and the only code that reads it. Readers take any bytes: they return a
/// message all of whose numbers are in range, or nothing.
namespace fp8lab::sockets {

using Bytes = std::span<const std::byte>;

inline constexpr int kMostRanks = 65536;

/// From a rank to rank 0, over and over until it is answered: first without ports, then with the ports at which it
/// awaits the others.
struct Handshake {
  std::uint64_t job = 0;  ///< tells jobs apart that share a host
  std::uint64_t process =
      0;  ///< a random number, which tells a repeated message from a second process of the same rank
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::vector<std::uint16_t> ports;  ///< by rank, 0 for this one and lower ones; empty, or `size` of them

  bool operator==(const Handshake&) const = default;
};
std::vector<std::byte> write(const Handshake& handshake);
/// Rank and size are as the sender gave them: a sender of another launch is reported so.
std::optional<Handshake> read_handshake(Bytes bytes);

/// From rank 0 to a rank: the address from which it comes; then, when all have come, where it reaches those below it;
/// or why it cannot take part.
struct Reply {
  enum class Kind : std::uint8_t { kWelcome = 1, kRefusal = 2, kRoster = 3 };
  /// Where a rank awaits the receiver.
  struct Place {
    std::string address;  ///< numeric; empty: where rank 0 is
    std::uint16_t port = 0;

    bool operator==(const Place&) const = default;
  };
  using Token = std::array<std::byte, 16>;

  Kind kind = Kind::kWelcome;
  std::string text;           ///< of a welcome or a refusal
  Token token{};              ///< of a roster: random, the same for all; who knows it is of the job
  std::vector<Place> places;  ///< of a roster: by rank, of those below the receiver

  bool operator==(const Reply&) const = default;
};
std::vector<std::byte> write(const Reply& reply);
std::optional<Reply> read_reply(Bytes bytes);

/// Larger messages are refused where they arrive.
std::size_t largest_handshake(int ranks);
std::size_t largest_reply(int ranks);

/// A message between two ranks travels as frames of at most kChunkBytes, in order, each with a head.
struct FrameHead {
  std::uint64_t tag = 0;
  std::uint64_t total = 0;   ///< of the message
  std::uint64_t offset = 0;  ///< of this frame in it
};
inline constexpr std::size_t kChunkBytes = std::size_t{512} << 10;
inline constexpr std::size_t kLargestFrame = sizeof(FrameHead) + kChunkBytes;

struct Frame {
  FrameHead head;
  Bytes payload;
};
/// Frames hold exactly the chunk that their offset names; no message is empty.
std::optional<Frame> read_frame(Bytes bytes);
inline std::size_t chunk_bytes(std::uint64_t total, std::uint64_t offset) {
  return total - offset < kChunkBytes ? static_cast<std::size_t>(total - offset) : kChunkBytes;
}

/// The first message either way between two ranks: one frame of one byte.
inline constexpr std::uint64_t kOpenTag = ~std::uint64_t{0};

}  // namespace fp8lab::sockets

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// Messages between ranks over TCP. Only the readers here interpret received bytes. They accept any bytes and return a
/// message whose numbers are all in range, or nothing.
namespace fp8lab::sockets {

using Bytes = std::span<const std::byte>;

inline constexpr int kMostRanks = 65536;

/// Sent by a rank to rank 0, repeatedly until it is answered: first without ports, then with the ports at which the
/// rank listens for higher ranks.
struct Handshake {
  std::uint64_t job = 0;  ///< distinguishes jobs that share a host
  /// A random number. It distinguishes a repeated message from a second process of the same rank.
  std::uint64_t process = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::vector<std::uint16_t> ports;  ///< by rank, 0 for this rank and lower ones; empty, or `size` of them

  bool operator==(const Handshake&) const = default;
};
std::vector<std::byte> write(const Handshake& handshake);
/// Rank and size are returned as the sender gave them, so that a sender of another launch can be reported.
std::optional<Handshake> read_handshake(Bytes bytes);

/// Sent by rank 0 to a rank. A welcome has the address from which the rank connected. A roster, sent when all ranks
/// have come, has the places where the rank reaches lower ranks. A refusal has the reason why the rank cannot take
/// part.
struct Reply {
  enum class Kind : std::uint8_t { kWelcome = 1, kRefusal = 2, kRoster = 3 };
  /// Where a lower rank listens for the receiver.
  struct Place {
    std::string address;  ///< numeric; empty: the address of rank 0
    std::uint16_t port = 0;

    bool operator==(const Place&) const = default;
  };
  using Token = std::array<std::byte, 16>;

  Kind kind = Kind::kWelcome;
  std::string text;           ///< of a welcome or a refusal
  Token token{};              ///< of a roster: random, the same for all ranks; only ranks of this run know it
  std::vector<Place> places;  ///< of a roster: by rank, of the ranks below the receiver

  bool operator==(const Reply&) const = default;
};
std::vector<std::byte> write(const Reply& reply);
std::optional<Reply> read_reply(Bytes bytes);

/// Size limits of received messages; larger ones are refused.
std::size_t largest_handshake(int ranks);
std::size_t largest_reply(int ranks);

/// A message between two ranks is sent as frames of at most kChunkBytes, in order, each with a head.
struct FrameHead {
  std::uint64_t tag = 0;
  std::uint64_t total = 0;   ///< bytes of the message
  std::uint64_t offset = 0;  ///< of this frame in the message
};
inline constexpr std::size_t kChunkBytes = std::size_t{512} << 10;
inline constexpr std::size_t kLargestFrame = sizeof(FrameHead) + kChunkBytes;

struct Frame {
  FrameHead head;
  Bytes payload;
};
/// Reads a frame. Its payload must be exactly the chunk at its offset; no message is empty.
std::optional<Frame> read_frame(Bytes bytes);
inline std::size_t chunk_bytes(std::uint64_t total, std::uint64_t offset) {
  return total - offset < kChunkBytes ? static_cast<std::size_t>(total - offset) : kChunkBytes;
}

/// Tag of the first message in either direction between two ranks: one frame of one byte.
inline constexpr std::uint64_t kOpenTag = ~std::uint64_t{0};

}  // namespace fp8lab::sockets

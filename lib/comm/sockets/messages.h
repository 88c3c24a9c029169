#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// What ranks that connect over TCP send to each other: frames. Only the readers here interpret received bytes. They
/// accept any bytes, and return a message whose fields are all in range, or nothing.
namespace fp8lab::sockets {

using Bytes = std::span<const std::byte>;

/// A message is sent as frames of at most kChunkBytes, in order, each with a head.
struct FrameHead {
  std::uint64_t tag = 0;     ///< processes::Tag, or one of those below
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

/// Tags of the messages below, and of one byte that asks whether a rank is still connected.
inline constexpr std::uint64_t kHandshakeTag = ~std::uint64_t{0};
inline constexpr std::uint64_t kRosterTag = kHandshakeTag - 1;
inline constexpr std::uint64_t kRefusalTag = kHandshakeTag - 2;
inline constexpr std::uint64_t kProbeTag = kHandshakeTag - 3;

inline constexpr int kLastPort = 65535;

/// By which a rank's socket is known to the others. Random, so that only ranks of this run know it.
using RankId = std::array<char, 16>;

/// From a rank to rank 0.
struct Handshake {
  std::array<char, 8> protocol = {'f', 'p', '8', 'l', 'a', 'b', '/', '3'};
  std::uint64_t job = 0;  ///< hash of the job's identity
  RankId id{};
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::uint32_t port = 0;  ///< where it listens
  std::uint32_t reserved = 0;

  bool operator==(const Handshake&) const = default;
};
/// Rank and size are returned as the sender gave them, so that a sender of another launch can be reported.
std::optional<Handshake> read_handshake(const Frame& frame);

/// Where a rank listens. Rank 0 sends those of all ranks, by rank, to every rank.
struct Place {
  RankId id{};
  std::array<char, 60> address{};  ///< numeric, zero-terminated; empty: the address of rank 0
  std::uint32_t port = 0;

  bool operator==(const Place&) const = default;
};
inline constexpr int kMostRanks = static_cast<int>(kChunkBytes / sizeof(Place));
std::optional<std::vector<Place>> read_roster(const Frame& frame, int size);

/// From rank 0: why a rank cannot take part. Printable.
std::optional<std::string> read_refusal(const Frame& frame);
/// `text` as a refusal may have it: of a bounded length, with "?" for what is not printable.
std::string printable(std::string text);

}  // namespace fp8lab::sockets

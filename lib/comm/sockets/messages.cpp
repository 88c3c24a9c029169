#include "comm/sockets/messages.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

namespace fp8lab::sockets {
namespace {

constexpr std::size_t kLongestText = 1024;

bool is_port(std::uint32_t number) { return number >= 1 && number <= static_cast<std::uint32_t>(kLastPort); }

/// Text from another process may reach a terminal, so it must be printable.
bool is_printable(char c) { return c >= ' ' && c <= '~'; }

bool is_valid(const Place& place) {
  const auto end = std::find(place.address.begin(), place.address.end(), '\0');
  return end != place.address.end() && std::all_of(place.address.begin(), end, is_printable) && is_port(place.port);
}

}  // namespace

std::optional<Frame> read_frame(Bytes bytes) {
  Frame frame{.head = {}, .payload = {}};
  if (bytes.size() < sizeof frame.head) return std::nullopt;
  std::memcpy(&frame.head, bytes.data(), sizeof frame.head);
  frame.payload = bytes.subspan(sizeof frame.head);
  const auto& [tag, total, offset] = frame.head;
  if (total > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  if (offset >= total || offset % kChunkBytes != 0) return std::nullopt;
  if (frame.payload.size() != chunk_bytes(total, offset)) return std::nullopt;
  return frame;
}

std::optional<Handshake> read_handshake(const Frame& frame) {
  static_assert(std::has_unique_object_representations_v<Handshake>);
  Handshake handshake;
  const std::array<char, 8> protocol = handshake.protocol;
  if (frame.head.tag != kHandshakeTag || frame.payload.size() != sizeof handshake) return std::nullopt;
  std::memcpy(&handshake, frame.payload.data(), sizeof handshake);
  if (handshake.protocol != protocol || !is_port(handshake.port)) return std::nullopt;
  return handshake;
}

std::optional<std::vector<Place>> read_roster(const Frame& frame, int size) {
  static_assert(std::has_unique_object_representations_v<Place>);
  std::vector<Place> places(static_cast<std::size_t>(size));
  if (frame.head.tag != kRosterTag || frame.payload.size() != places.size() * sizeof(Place)) return std::nullopt;
  std::memcpy(places.data(), frame.payload.data(), frame.payload.size());
  if (!std::all_of(places.begin(), places.end(), is_valid)) return std::nullopt;
  return places;
}

std::optional<std::string> read_refusal(const Frame& frame) {
  if (frame.head.tag != kRefusalTag || frame.payload.size() > kLongestText) return std::nullopt;
  std::string text(reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size());
  if (!std::all_of(text.begin(), text.end(), is_printable)) return std::nullopt;
  return text;
}

std::string printable(std::string text) {
  text.resize(std::min(text.size(), kLongestText));
  std::replace_if(text.begin(), text.end(), [](char c) { return !is_printable(c); }, '?');
  return text;
}

}  // namespace fp8lab::sockets

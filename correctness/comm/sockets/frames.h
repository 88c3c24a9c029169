#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "comm/sockets/messages.h"

/// Messages of one frame, as another rank's socket receives them.
namespace fp8lab::sockets {

inline std::vector<std::byte> write_frame(std::uint64_t tag, Bytes message) {
  const FrameHead head{.tag = tag, .total = message.size(), .offset = 0};
  std::vector<std::byte> frame(sizeof head + message.size());
  std::memcpy(frame.data(), &head, sizeof head);
  std::copy(message.begin(), message.end(), frame.begin() + sizeof head);
  return frame;
}
inline std::vector<std::byte> write(const Handshake& handshake) {
  return write_frame(kHandshakeTag, std::as_bytes(std::span(&handshake, 1)));
}
inline std::vector<std::byte> write(std::span<const Place> roster) {
  return write_frame(kRosterTag, std::as_bytes(roster));
}
inline std::vector<std::byte> write(const std::string& refusal) {
  return write_frame(kRefusalTag, std::as_bytes(std::span(refusal)));
}

}  // namespace fp8lab::sockets

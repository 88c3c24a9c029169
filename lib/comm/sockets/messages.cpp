#include "comm/sockets/messages.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>

namespace fp8lab::sockets {
namespace {

constexpr std::array<char, 8> kProtocol = {'f', 'p', '8', 'l', 'a', 'b', '/', '2'};
constexpr std::size_t kLongestText = 1024;

/// The head of a handshake; its ports follow.
struct HandshakeHead {
  std::array<char, 8> protocol = kProtocol;
  std::uint64_t job = 0;
  std::uint64_t process = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
};
/// The head of a reply; its text, or its token and places, follow.
struct ReplyHead {
  std::array<char, 8> protocol = kProtocol;
  std::uint64_t kind = 0;
};
struct PlacePlain {
  std::array<char, 62> address{};  ///< zero-terminated
  std::uint16_t port = 0;
};

class Writer {
 public:
  template <class Plain>
  void add(const Plain& plain) {
    static_assert(std::has_unique_object_representations_v<Plain>);
    add(&plain, sizeof plain);
  }
  void add(const void* from, std::size_t bytes) {
    const auto* first = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), first, first + bytes);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(Bytes bytes) : left_(bytes) {}

  template <class Plain>
  bool take(Plain& plain) {
    static_assert(std::has_unique_object_representations_v<Plain>);
    if (left_.size() < sizeof plain) return false;
    std::memcpy(&plain, left_.data(), sizeof plain);
    left_ = left_.subspan(sizeof plain);
    return true;
  }
  Bytes left() const { return left_; }

 private:
  Bytes left_;
};

/// Text from another process may reach a terminal, so it must be printable.
bool is_printable(char c) { return c >= ' ' && c <= '~'; }
bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return is_printable(c); });
}

std::optional<Reply::Place> read_place(const PlacePlain& plain) {
  const auto end = std::find(plain.address.begin(), plain.address.end(), '\0');
  if (end == plain.address.end() || plain.port == 0) return std::nullopt;
  Reply::Place place{.address = std::string(plain.address.begin(), end), .port = plain.port};
  if (!is_printable(place.address)) return std::nullopt;
  return place;
}

}  // namespace

std::vector<std::byte> write(const Handshake& handshake) {
  Writer writer;
  writer.add(HandshakeHead{
      .job = handshake.job, .process = handshake.process, .rank = handshake.rank, .size = handshake.size});
  for (const std::uint16_t port : handshake.ports) writer.add(port);
  return writer.take();
}

std::optional<Handshake> read_handshake(Bytes bytes) {
  Reader reader(bytes);
  HandshakeHead head;
  if (!reader.take(head) || head.protocol != kProtocol) return std::nullopt;
  Handshake handshake{.job = head.job, .process = head.process, .rank = head.rank, .size = head.size, .ports = {}};
  const std::size_t ports = reader.left().size() / sizeof(std::uint16_t);
  if (reader.left().size() % sizeof(std::uint16_t) != 0 || ports > kMostRanks) return std::nullopt;
  if (ports != 0 && (head.size < 0 || ports != static_cast<std::size_t>(head.size))) return std::nullopt;
  handshake.ports.resize(ports);
  for (std::uint16_t& port : handshake.ports) reader.take(port);
  return handshake;
}

std::vector<std::byte> write(const Reply& reply) {
  Writer writer;
  writer.add(ReplyHead{.kind = static_cast<std::uint64_t>(reply.kind)});
  if (reply.kind != Reply::Kind::kRoster) {
    for (const char c : std::string_view(reply.text).substr(0, kLongestText)) writer.add(is_printable(c) ? c : '?');
    return writer.take();
  }
  writer.add(reply.token);
  for (const Reply::Place& place : reply.places) {
    PlacePlain plain{.port = place.port};
    std::copy_n(place.address.begin(), std::min(place.address.size(), plain.address.size() - 1), plain.address.begin());
    writer.add(plain);
  }
  return writer.take();
}

std::optional<Reply> read_reply(Bytes bytes) {
  Reader reader(bytes);
  ReplyHead head;
  if (!reader.take(head) || head.protocol != kProtocol) return std::nullopt;
  Reply reply;
  if (head.kind == static_cast<std::uint64_t>(Reply::Kind::kRoster)) {
    reply.kind = Reply::Kind::kRoster;
    if (!reader.take(reply.token)) return std::nullopt;
    const std::size_t places = reader.left().size() / sizeof(PlacePlain);
    if (reader.left().size() % sizeof(PlacePlain) != 0 || places > kMostRanks) return std::nullopt;
    for (PlacePlain plain; reader.take(plain);) {
      std::optional<Reply::Place> place = read_place(plain);
      if (!place) return std::nullopt;
      reply.places.push_back(*std::move(place));
    }
    return reply;
  }
  if (head.kind == static_cast<std::uint64_t>(Reply::Kind::kRefusal))
    reply.kind = Reply::Kind::kRefusal;
  else if (head.kind != static_cast<std::uint64_t>(Reply::Kind::kWelcome))
    return std::nullopt;
  const Bytes text = reader.left();
  if (text.size() > kLongestText) return std::nullopt;
  reply.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  if (!is_printable(reply.text)) return std::nullopt;
  return reply;
}

std::size_t largest_handshake(int ranks) {
  return sizeof(HandshakeHead) + sizeof(std::uint16_t) * static_cast<std::size_t>(ranks);
}

std::size_t largest_reply(int ranks) {
  return sizeof(ReplyHead) +
         std::max(kLongestText, sizeof(Reply::Token) + sizeof(PlacePlain) * static_cast<std::size_t>(ranks));
}

std::optional<Frame> read_frame(Bytes bytes) {
  Reader reader(bytes);
  FrameHead head;
  if (!reader.take(head)) return std::nullopt;
  if (head.total > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  if (head.offset >= head.total || head.offset % kChunkBytes != 0) return std::nullopt;
  if (reader.left().size() != chunk_bytes(head.total, head.offset)) return std::nullopt;
  return Frame{.head = head, .payload = reader.left()};
}

}  // namespace fp8lab::sockets

#include "comm/sockets/connection.h"

#include <errno.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>

namespace fp8lab::sockets {
namespace {

constexpr std::uint64_t kFarewellTag = processes::Tag{}.number();

bool is_passing(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

bool is_call(std::uint64_t tag) { return tag % 2 == 0; }

// Read for zeros, written for what is dropped.
constexpr std::size_t kPageBytes = std::size_t{64} << 10;
constexpr std::array<std::byte, kPageBytes> kZeros{};
thread_local std::array<std::byte, kPageBytes> dropped;

// Parts of frames that one system call takes.
constexpr std::size_t kPieces = 24;

/// Pieces of frames, less what has been sent already.
class Pieces {
 public:
  explicit Pieces(std::size_t skipped) : skipped_(skipped) {}

  void add(const void* from, std::size_t bytes) {
    const std::size_t skipped = std::min(skipped_, bytes);
    skipped_ -= skipped;
    if (skipped == bytes) return;
    vectors_[count_++] = {const_cast<std::byte*>(static_cast<const std::byte*>(from)) + skipped, bytes - skipped};
  }
  /// False if there are more than one page of them left; then nothing may follow.
  bool add_zeros(std::size_t bytes) {
    const std::size_t skipped = std::min(skipped_, bytes);
    skipped_ -= skipped;
    const std::size_t left = bytes - skipped;
    if (left > 0) vectors_[count_++] = {const_cast<std::byte*>(kZeros.data()), std::min(left, kZeros.size())};
    return left <= kZeros.size();
  }
  bool has_room() const { return count_ + 3 <= kPieces; }
  ssize_t send(int descriptor) {
    msghdr message{};
    message.msg_iov = vectors_.data();
    message.msg_iovlen = count_;
    return ::sendmsg(descriptor, &message, MSG_NOSIGNAL);
  }

 private:
  std::array<iovec, kPieces> vectors_{};
  std::size_t count_ = 0;
  std::size_t skipped_;
};

}  // namespace

void Connection::send(const std::byte* from, std::int64_t bytes, std::uint64_t tag) {
  if (bytes == 0) return;
  Outgoing& message = outgoing_.emplace_back();
  message.head = {.tag = tag, .bytes = bytes};
  message.from = from;
  message.small = static_cast<std::size_t>(bytes) <= kSmallBytes;
  if (message.small) std::copy_n(from, bytes, message.copy.begin());
}

void Connection::receive(std::byte* to, std::int64_t bytes, std::uint64_t tag) {
  if (bytes == 0) return;
  if (has_early_ && early_head_.tag == tag) {
    has_early_ = false;
    std::copy_n(early_.begin(), bytes, to);
    return;
  }
  expected_.push_back({.head = {.tag = tag, .bytes = bytes}, .to = to});
  ++unreceived_;
}

void Connection::abandon() {
  if (place_ == Place::kExpected) place_ = Place::kDropped;
  expected_.clear();
  first_unbegun_ = 0;
  unreceived_ = 0;
  // What is small goes on its way; so does, filled up, what has begun.
  std::size_t kept = first_outgoing_;
  for (std::size_t i = first_outgoing_; i < outgoing_.size(); ++i) {
    Outgoing& message = outgoing_[i];
    const bool begun = i == first_outgoing_ && sent_bytes_ > 0;
    if (!message.small && !begun) continue;
    if (!message.small && sent_bytes_ < message.frame_bytes() - sizeof(Ending)) {
      message.from = nullptr;
      message.ending = Ending::kAbandoned;
    }
    if (kept != i) outgoing_[kept] = message;
    ++kept;
  }
  outgoing_.resize(kept);
}

void Connection::expect_farewell(processes::Farewell* farewell) {
  farewell_ = farewell;
  farewell_came_ = false;
  drops_ = false;
  has_early_ = false;
}

void Connection::progress() {
  write();
  read();
}

short Connection::wanted_events() const {
  if (!lost_.empty() || !socket_) return 0;
  // A frame whose head is read and whose place is undecided waits for somebody to ask for it.
  const bool waits = read_bytes_ == sizeof(Head) && place_ == Place::kUndecided;
  return static_cast<short>((unsent() > 0 ? POLLOUT : 0) | (reads() && !waits ? POLLIN : 0));
}

void Connection::write() {
  while (unsent() > 0 && lost_.empty() && socket_) {
    Pieces pieces(sent_bytes_);
    for (std::size_t i = first_outgoing_; i < outgoing_.size() && pieces.has_room(); ++i) {
      const Outgoing& message = outgoing_[i];
      const auto bytes = static_cast<std::size_t>(message.head.bytes);
      const std::byte* from = message.small ? message.copy.data() : message.from;
      pieces.add(&message.head, sizeof(Head));
      if (from != nullptr)
        pieces.add(from, bytes);
      else if (!pieces.add_zeros(bytes))
        break;
      pieces.add(&message.ending, sizeof(Ending));
    }
    const ssize_t sent = pieces.send(descriptor());
    if (sent < 0) {
      const int error = errno;
      if (is_passing(error)) return;
      read();  // which may still find a farewell
      return lose(error);
    }
    sent_bytes_ += static_cast<std::size_t>(sent);
    while (unsent() > 0 && sent_bytes_ >= outgoing_[first_outgoing_].frame_bytes())
      sent_bytes_ -= outgoing_[first_outgoing_++].frame_bytes();
  }
  if (unsent() > 0) return;
  outgoing_.clear();
  first_outgoing_ = 0;
}

void Connection::read() {
  while (reads() && read_head() && read_rest()) finish_frame();
}

/// Whether the head is there and the frame has a place to go to.
bool Connection::read_head() {
  while (read_bytes_ < sizeof(Head)) {
    auto* const head = reinterpret_cast<std::byte*>(&head_);
    const std::int64_t received = receive_some(head + read_bytes_, sizeof(Head) - read_bytes_, nullptr, 0);
    if (received <= 0) return false;
    read_bytes_ += static_cast<std::size_t>(received);
  }
  if (place_ == Place::kUndecided) place_ = decide();
  return place_ != Place::kUndecided;
}

Connection::Place Connection::decide() {
  if (head_.tag == kFarewellTag) {
    to_ = reinterpret_cast<std::byte*>(farewell_);
    return Place::kFarewell;
  }
  if (drops_) return Place::kDropped;
  for (std::size_t i = first_unbegun_; i < expected_.size(); ++i) {
    Expected& expected = expected_[i];
    if (expected.begun || expected.head.tag != head_.tag || expected.head.bytes != head_.bytes) continue;
    expected.begun = true;
    while (first_unbegun_ < expected_.size() && expected_[first_unbegun_].begun) ++first_unbegun_;
    to_ = expected.to;
    return Place::kExpected;
  }
  if (!is_call(head_.tag) || has_early_ || head_.bytes > static_cast<std::int64_t>(kSmallBytes))
    return Place::kUndecided;
  to_ = early_.data();
  return Place::kEarly;
}

bool Connection::read_rest() {
  const std::size_t body_end = sizeof(Head) + static_cast<std::size_t>(head_.bytes);
  const std::size_t end = body_end + sizeof(Ending);
  while (read_bytes_ < end) {
    std::size_t body_bytes = body_end - std::min(read_bytes_, body_end);
    std::size_t tail_bytes = std::min(end - read_bytes_, sizeof(Ending));
    std::byte* const tail = reinterpret_cast<std::byte*>(&ending_) + sizeof(Ending) - tail_bytes;
    std::byte* body = dropped.data();
    if (place_ != Place::kDropped) {
      body = to_ + (read_bytes_ - sizeof(Head));
    } else if (body_bytes > dropped.size()) {
      body_bytes = dropped.size();
      tail_bytes = 0;
    }
    const std::int64_t received = receive_some(body, body_bytes, tail, tail_bytes);
    if (received <= 0) return false;
    read_bytes_ += static_cast<std::size_t>(received);
  }
  return true;
}

void Connection::finish_frame() {
  const bool whole = ending_ == Ending::kWhole;
  // What is not whole stays expected, and in vain: the sender's farewell follows.
  if (place_ == Place::kExpected && whole && --unreceived_ == 0) {
    expected_.clear();
    first_unbegun_ = 0;
  }
  if (place_ == Place::kEarly) {
    has_early_ = true;
    early_head_ = head_;
  }
  if (place_ == Place::kFarewell) farewell_came_ = true;
  read_bytes_ = 0;
  place_ = Place::kUndecided;
}

/// What has come of up to two pieces; 0 if nothing has.
std::int64_t Connection::receive_some(std::byte* body, std::size_t body_bytes, std::byte* tail,
                                      std::size_t tail_bytes) {
  std::array<iovec, 2> vectors = {iovec{body, body_bytes}, iovec{tail, tail_bytes}};
  const ssize_t received = ::readv(descriptor(), vectors.data(), static_cast<int>(vectors.size()));
  if (received > 0) return received;
  if (received == 0)
    lose(0);
  else if (!is_passing(errno))
    lose(errno);
  return 0;
}

void Connection::lose(int error) {
  if (!lost_.empty()) return;
  lost_ = error == 0 ? "its process has ended, or closed the connection"
                     : fmt::format("its process has ended, or cannot be reached: {}", error_text(error));
}

}  // namespace fp8lab::sockets

#include "comm/sockets/inbox.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/check.h"

namespace fp8lab::sockets {
namespace {

using processes::ShutdownBytes;
using processes::Tag;

constexpr std::uint64_t kShutdownNumber = Tag{}.number();

}  // namespace

void Inbox::expect_shutdown(ShutdownBytes* message) {
  shutdown_ = message;
  shutdown_came_ = false;
  abandoned_ = false;
  deliver();
}

const ShutdownBytes* Inbox::early_shutdown() const {
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(), [](const Small& s) { return s.tag == kShutdownNumber; });
  return found == waiting_.end() ? nullptr : &found->message;
}

void Inbox::expect(std::byte* to, std::int64_t bytes, Tag tag) {
  if (bytes == 0) return;
  check(tag.data || bytes == sizeof(processes::Call), "a call is expected in a place of another size");
  expected_.push_back({.tag = tag.number(), .bytes = static_cast<std::uint64_t>(bytes), .to = to});
  ++(tag.data ? unreceived_data_ : unreceived_calls_);
  if (!tag.data) deliver();
}

void Inbox::abandon() {
  abandoned_ = true;
  to_ = nullptr;
  unreceived_calls_ = unreceived_data_ = 0;
  expected_.clear();
}

std::span<std::byte> Inbox::room() {
  if (chunk_left_ == 0) return std::as_writable_bytes(std::span(&frame_, 1)).subspan(head_bytes_);
  if (!Tag::is_collective_data(frame_.tag)) return {&incoming_.message[incoming_.bytes], chunk_left_};
  if (to_ == nullptr) return std::span(dropped_).first(std::min(chunk_left_, dropped_.size()));
  return {to_, chunk_left_};
}

bool Inbox::take(std::size_t bytes) {
  if (!problem_.empty()) return false;
  if (chunk_left_ == 0) {
    head_bytes_ += bytes;
    if (head_bytes_ < sizeof frame_) return true;
    head_bytes_ = 0;
    return begin_frame();
  }
  chunk_left_ -= bytes;
  if (!Tag::is_collective_data(frame_.tag)) {
    incoming_.bytes += bytes;
    if (chunk_left_ > 0) return true;
    waiting_.push_back(incoming_);
    deliver();
    return true;
  }
  if (to_ != nullptr) to_ += bytes;
  if (chunk_left_ > 0 || data_.offset < data_.total) return true;
  data_ = {};
  if (std::exchange(to_, nullptr) != nullptr) --unreceived_data_;
  return true;
}

bool Inbox::begin_frame() {
  const auto& [tag, total, offset] = frame_;
  if (total > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) || offset >= total ||
      offset % kChunkBytes != 0)
    return refuse("it sent a head that no rank sends");
  if (!(Tag::is_collective_data(tag) ? begin_data() : begin_small())) return false;
  chunk_left_ = frame_.chunk_bytes();
  return true;
}

bool Inbox::begin_small() {
  const auto& [tag, total, offset] = frame_;
  if (tag == kShutdownNumber && total != sizeof *shutdown_)
    return refuse(fmt::format("it sent a shutdown message of {} bytes, which has {}", total, sizeof *shutdown_));
  if (tag != kShutdownNumber && total != sizeof(processes::Call))
    return refuse(fmt::format("it sent a call of {} bytes, which has {}", total, sizeof(processes::Call)));
  if (waiting_.size() >= kMostWaiting) return refuse("it sent calls without waiting for their replies");
  incoming_.tag = tag;
  incoming_.bytes = 0;
  return true;
}

bool Inbox::begin_data() {
  const auto& [tag, total, offset] = frame_;
  if (offset == 0) {
    // A message that is cut short by the next one stays expected and never completes: its sender gave it up, and a
    // shutdown message follows.
    const std::optional<Expected> expected = take_expected(tag);
    if (!expected && !abandoned_) return refuse("it sent bytes of a collective before they were expected");
    if (expected && expected->bytes != total)
      return refuse(fmt::format("it sent a message of {} bytes, and one of {} is expected", total, expected->bytes));
    data_ = frame_;
    to_ = expected ? expected->to : nullptr;
  } else if (tag != data_.tag || total != data_.total || offset != data_.offset) {
    return refuse(fmt::format("it sent byte {} of a message before those in front", offset));
  }
  data_.offset += frame_.chunk_bytes();
  return true;
}

/// Hands over what waits, up to the run's shutdown message. Calls in front of that which are not expected by then are
/// not answered any more.
void Inbox::deliver() {
  for (std::size_t i = 0; i < waiting_.size() && !shutdown_came_;) {
    const Small& message = waiting_[i];
    const auto at = waiting_.begin() + static_cast<std::ptrdiff_t>(i);
    if (message.tag == kShutdownNumber) {
      *shutdown_ = message.message;
      shutdown_came_ = true;
      waiting_.erase(waiting_.begin(), at + 1);
    } else if (const std::optional<Expected> expected = take_expected(message.tag)) {
      std::copy_n(message.message.begin(), message.bytes, expected->to);
      waiting_.erase(at);
      --unreceived_calls_;
    } else {
      ++i;
    }
  }
}

/// The message of that tag that is due next, or nothing.
std::optional<Inbox::Expected> Inbox::take_expected(std::uint64_t tag) {
  const auto due = std::find_if(expected_.begin(), expected_.end(), [&](const Expected& e) { return e.tag == tag; });
  if (due == expected_.end()) return std::nullopt;
  const Expected taken = *due;
  expected_.erase(due);
  return taken;
}

bool Inbox::refuse(std::string problem) {
  problem_ = std::move(problem);
  return false;
}

}  // namespace fp8lab::sockets

#include "comm/sockets/inbox.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace fp8lab::sockets {
namespace {

using processes::ShutdownBytes;
using processes::Tag;

constexpr std::uint64_t kShutdownTag = Tag{}.number();
// Of the run that ends and of the next one, a call and a shutdown message each.
constexpr std::size_t kMostWaiting = 4;

}  // namespace

Inbox::Inbox() { waiting_.reserve(kMostWaiting); }

void Inbox::expect_shutdown(ShutdownBytes* message) {
  shutdown_ = message;
  shutdown_came_ = false;
  abandoned_ = false;
  deliver();
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

bool Inbox::take(Bytes bytes) {
  if (!problem_.empty()) return false;
  const std::optional<Frame> frame = read_frame(bytes);
  if (!frame) return refuse(fmt::format("it sent {} bytes that are no frame", bytes.size()));
  if (frame->head.tag == kProbeTag) return true;
  return Tag::is_collective_data(frame->head.tag) ? take_data(*frame) : take_small(*frame);
}

bool Inbox::take_small(const Frame& frame) {
  const auto& [tag, total, offset] = frame.head;
  if (tag == kShutdownTag && total != sizeof *shutdown_)
    return refuse(fmt::format("it sent a shutdown message of {} bytes, which has {}", total, sizeof *shutdown_));
  if (tag != kShutdownTag && total != sizeof(processes::Call))
    return refuse(fmt::format("it sent a call of {} bytes, which has {}", total, sizeof(processes::Call)));
  if (waiting_.size() >= kMostWaiting) return refuse("it sent calls without waiting for their answers");
  Waiting& message = waiting_.emplace_back();
  message.tag = tag;
  message.bytes = frame.payload.size();
  std::copy(frame.payload.begin(), frame.payload.end(), message.message.begin());
  deliver();
  return problem_.empty();
}

/// Hands over what waits, up to the run's shutdown message. Calls in front of that which are not expected by then are
/// not answered any more.
void Inbox::deliver() {
  for (std::size_t i = 0; i < waiting_.size() && !shutdown_came_;) {
    const Waiting& message = waiting_[i];
    const auto at = waiting_.begin() + static_cast<std::ptrdiff_t>(i);
    if (message.tag == kShutdownTag) {
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

bool Inbox::take_data(const Frame& frame) {
  const auto& [tag, total, offset] = frame.head;
  if (offset == 0) {
    // A message that is cut short by the next one stays expected and never completes: its sender gave it up, and a
    // shutdown message follows.
    const std::optional<Expected> expected = take_expected(tag);
    if (!expected && !abandoned_) return refuse("it sent bytes of a collective before they were expected");
    if (expected && expected->bytes != total)
      return refuse(fmt::format("it sent a message of {} bytes where one of {} is due", total, expected->bytes));
    head_ = frame.head;
    to_ = expected ? expected->to : nullptr;
  } else if (tag != head_.tag || total != head_.total || offset != head_.offset) {
    return refuse(fmt::format("it sent byte {} of a message before those in front", offset));
  }
  if (to_ != nullptr) std::copy(frame.payload.begin(), frame.payload.end(), to_ + static_cast<std::size_t>(offset));
  head_.offset += frame.payload.size();
  if (head_.offset < total) return true;
  head_ = {};
  if (to_ == nullptr) return true;
  to_ = nullptr;
  --unreceived_data_;
  return true;
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

#include "comm/sockets/inbox.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace fp8lab::sockets {
namespace {

constexpr std::uint64_t kShutdownTag = processes::Tag{}.number();

bool is_call(std::uint64_t tag) { return tag % 2 == 0; }

}  // namespace

void Inbox::expect_shutdown(processes::ShutdownBytes* message) {
  shutdown_ = message;
  shutdown_came_ = false;
  drops_ = false;
  has_early_ = false;
}

void Inbox::expect(std::byte* to, std::int64_t bytes, std::uint64_t tag) {
  if (bytes == 0) return;
  const auto wanted = static_cast<std::uint64_t>(bytes);
  if (has_early_ && early_tag_ == tag) {
    if (early_bytes_ != wanted)
      problem_ = fmt::format("it sent a call of {} bytes where one of {} is due", early_bytes_, wanted);
    if (!problem_.empty()) return;
    has_early_ = false;
    std::copy_n(early_.begin(), wanted, to);
    return;
  }
  expected_.push_back({.tag = tag, .bytes = wanted, .to = to});
  ++unreceived_;
}

void Inbox::abandon() {
  if (place_ == Place::kExpected) place_ = Place::kDropped;
  expected_.clear();
  first_unbegun_ = 0;
  unreceived_ = 0;
}

Inbox::Taken Inbox::take(Bytes bytes) {
  if (!problem_.empty()) return Taken::kInvalid;
  if (shutdown_came_) return Taken::kNotYet;
  const std::optional<Frame> frame = read_frame(bytes);
  if (!frame) return refuse(fmt::format("it sent {} bytes that are no frame", bytes.size()));
  if (frame->head.offset == 0) {
    // A message that is cut short by the next one stays expected and never completes: its sender gave it up, and a
    // shutdown message follows.
    if (const Taken begun = begin(frame->head); begun != Taken::kDone) return begun;
  } else if (place_ == Place::kNone || frame->head.tag != head_.tag || frame->head.total != head_.total ||
             frame->head.offset != head_.offset) {
    return refuse(fmt::format("it sent byte {} of a message before those in front", frame->head.offset));
  }
  if (place_ != Place::kDropped)
    std::copy(frame->payload.begin(), frame->payload.end(), to_ + static_cast<std::size_t>(frame->head.offset));
  head_.offset = frame->head.offset + frame->payload.size();
  if (head_.offset == head_.total) finish();
  return Taken::kDone;
}

/// Finds where a message goes.
Inbox::Taken Inbox::begin(const FrameHead& head) {
  const auto belongs = [&](Place where, std::byte* to) {
    head_ = head;
    place_ = where;
    to_ = to;
    return Taken::kDone;
  };
  if (head.tag == kShutdownTag) {
    if (head.total != sizeof *shutdown_)
      return refuse(fmt::format("it sent a shutdown message of {} bytes, which has {}", head.total, sizeof *shutdown_));
    return belongs(Place::kShutdown, shutdown_->data());
  }
  if (drops_) return belongs(Place::kDropped, nullptr);
  // Messages of one tag arrive in the order in which they are expected.
  for (std::size_t i = first_unbegun_; i < expected_.size(); ++i) {
    Expected& expected = expected_[i];
    if (expected.begun || expected.tag != head.tag) continue;
    if (expected.bytes != head.total)
      return refuse(fmt::format("it sent a message of {} bytes where one of {} is due", head.total, expected.bytes));
    expected.begun = true;
    while (first_unbegun_ < expected_.size() && expected_[first_unbegun_].begun) ++first_unbegun_;
    return belongs(Place::kExpected, expected.to);
  }
  if (!is_call(head.tag)) return Taken::kNotYet;
  if (head.total > kSmallBytes) return refuse(fmt::format("it sent a call of {} bytes", head.total));
  if (has_early_) return Taken::kNotYet;
  return belongs(Place::kEarly, early_.data());
}

void Inbox::finish() {
  if (place_ == Place::kExpected && --unreceived_ == 0) {
    expected_.clear();
    first_unbegun_ = 0;
  }
  if (place_ == Place::kEarly) {
    has_early_ = true;
    early_tag_ = head_.tag;
    early_bytes_ = head_.total;
  }
  if (place_ == Place::kShutdown) shutdown_came_ = true;
  place_ = Place::kNone;
}

Inbox::Taken Inbox::refuse(std::string problem) {
  problem_ = std::move(problem);
  return Taken::kInvalid;
}

}  // namespace fp8lab::sockets

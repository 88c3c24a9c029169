#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/processes/transport.h"

namespace fp8lab::sockets {

/// A message is sent as frames: chunks of at most kChunkBytes, in order, each behind a head.
struct FrameHead {
  std::uint64_t tag = 0;     ///< processes::Tag
  std::uint64_t total = 0;   ///< bytes of the message
  std::uint64_t offset = 0;  ///< offset of this chunk in the message

  std::size_t chunk_bytes() const;
};
inline constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
inline std::size_t FrameHead::chunk_bytes() const {
  return total - offset < kChunkBytes ? static_cast<std::size_t>(total - offset) : kChunkBytes;
}

/// Takes the stream of bytes of one other rank, and places messages where they belong. Every length is compared with
/// the expected one before a byte of the message is read. A rank that sends anything else is refused.
///
/// A call may come before it is expected: ranks in different groups wait for each other's calls. What follows a
/// shutdown message belongs to the next run, and waits for it. A rank has a few such messages under way. Bytes of a
/// collective never come early, see Transport; bytes of a collective that was abandoned here are dropped.
class Inbox {
 public:
  Inbox() { waiting_.reserve(kMostWaiting); }
  /// Begins a run. Its shutdown message is written to `message`.
  void expect_shutdown(processes::ShutdownBytes* message);
  bool shutdown_came() const { return shutdown_came_; }
  /// The shutdown message that waits for the next run, or null.
  const processes::ShutdownBytes* early_shutdown() const;

  void expect(std::byte* to, std::int64_t bytes, processes::Tag tag);
  /// True if everything expected has arrived; with `calls_only`, if the calls have.
  bool complete(bool calls_only) const { return unreceived_calls_ == 0 && (calls_only || unreceived_data_ == 0); }
  /// Forgets expected messages. The caller's memory is not written any more, and bytes of collectives are dropped until
  /// the next run.
  void abandon();

  /// The place of the next bytes of the stream; never empty.
  std::span<std::byte> room();
  /// To be called once `bytes` of room() are written. False if no rank sends them: problem() describes it, and no more
  /// may be taken.
  bool take(std::size_t bytes);
  const std::string& problem() const { return problem_; }

 private:
  // A call and a shutdown message of the run that ends, and both of the next one.
  static constexpr std::size_t kMostWaiting = 4;
  struct Expected {
    std::uint64_t tag;
    std::uint64_t bytes;
    std::byte* to;
  };
  struct Small {
    std::uint64_t tag = 0;
    std::size_t bytes = 0;
    processes::ShutdownBytes message{};  ///< room for the longer of the two kinds
  };

  bool begin_frame();
  bool begin_small();
  bool begin_data();
  void deliver();
  std::optional<Expected> take_expected(std::uint64_t tag);
  bool refuse(std::string problem);

  std::vector<Expected> expected_;  ///< in order; messages that have not begun to arrive
  std::size_t unreceived_calls_ = 0;
  std::size_t unreceived_data_ = 0;

  FrameHead frame_;             ///< whose bytes arrive
  std::size_t head_bytes_ = 0;  ///< bytes of its head that have arrived
  std::size_t chunk_left_ = 0;  ///< bytes of its chunk that have not arrived
  FrameHead data_;              ///< head of the data whose chunks arrive, with the next chunk's offset
  std::byte* to_ = nullptr;     ///< the place of its next byte; null: it is dropped
  std::array<std::byte, 16 << 10> dropped_;

  Small incoming_;
  std::vector<Small> waiting_;  ///< calls and shutdown messages, in order
  processes::ShutdownBytes* shutdown_ = nullptr;
  bool shutdown_came_ = true;
  bool abandoned_ = false;
  std::string problem_;
};

}  // namespace fp8lab::sockets

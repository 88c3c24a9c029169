#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/processes/transport.h"
#include "comm/sockets/messages.h"

namespace fp8lab::sockets {

/// Receives the frames of one other rank and writes messages to where they belong. Every length is compared with the
/// expected one before a byte is written.
///
/// A frame that nobody expects yet waits and holds up those behind it. Exception: one call of a collective is stored
/// early. Ranks in different groups wait for each other's calls, and a rank must get past one call to receive a
/// shutdown message. After a shutdown message every frame waits for the next run, whose messages may follow at once.
class Inbox {
 public:
  /// Messages up to this size may arrive before they are expected.
  static constexpr std::size_t kSmallBytes = 256;

  /// Begins a run. Its shutdown message is written to `message`.
  void expect_shutdown(processes::ShutdownBytes* message);
  bool shutdown_came() const { return shutdown_came_; }
  /// From now on drops every message that is not expected, except for the shutdown message.
  void drop_all_else() { drops_ = true; }

  void expect(std::byte* to, std::int64_t bytes, std::uint64_t tag);
  /// True if everything expected has arrived.
  bool complete() const { return unreceived_ == 0; }
  /// Forgets expected messages; the caller's memory is not written any more.
  void abandon();

  enum class Taken : std::uint8_t { kDone, kNotYet, kInvalid };
  /// Takes a frame. An invalid frame is one that no rank sends: problem() describes it, and no more frames may be
  /// taken.
  Taken take(Bytes bytes);
  const std::string& problem() const { return problem_; }

 private:
  struct Expected {
    std::uint64_t tag = 0;
    std::uint64_t bytes = 0;
    std::byte* to = nullptr;
    bool begun = false;
  };
  /// Where the message that is being received goes.
  enum class Place : std::uint8_t { kNone, kExpected, kEarly, kShutdown, kDropped };

  Taken begin(const FrameHead& head);
  void finish();
  Taken refuse(std::string problem);

  std::vector<Expected> expected_;
  std::size_t first_unbegun_ = 0;
  std::size_t unreceived_ = 0;

  FrameHead head_;  ///< of the message being received; its offset is that of the next frame
  Place place_ = Place::kNone;
  std::byte* to_ = nullptr;

  bool has_early_ = false;
  std::uint64_t early_tag_ = 0;
  std::uint64_t early_bytes_ = 0;
  std::array<std::byte, kSmallBytes> early_{};

  processes::ShutdownBytes* shutdown_ = nullptr;
  bool shutdown_came_ = true;
  bool drops_ = false;
  std::string problem_;
};

}  // namespace fp8lab::sockets

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/processes/transport.h"
#include "comm/sockets/messages.h"

namespace fp8lab::sockets {

/// What one other rank sends, frame by frame, put where the messages belong. Every length is compared with what is
/// expected before a byte is written.
///
/// A frame that nobody asks for yet waits, and holds up those behind it, except for one call of a collective: ranks in
/// different groups wait for each other's calls, and must get past one to hear a shutdown message. After a shutdown
/// message every frame waits for the next run, whose messages may follow at once.
class Inbox {
 public:
  /// Messages up to this size may come before they are asked for.
  static constexpr std::size_t kSmallBytes = 256;

  /// Begins a run, whose shutdown message goes to `message`.
  void expect_shutdown(processes::ShutdownBytes* message);
  bool shutdown_came() const { return shutdown_came_; }
  /// What nobody has asked for is dropped from now on, except for the shutdown message.
  void drop_all_else() { drops_ = true; }

  void expect(std::byte* to, std::int64_t bytes, std::uint64_t tag);
  /// Whether everything expected is here.
  bool complete() const { return unreceived_ == 0; }
  /// Forgets what is expected; memory of the caller is not written any more.
  void abandon();

  enum class Taken : std::uint8_t { kDone, kNotYet, kInvalid };
  /// A frame that is invalid is one that no rank sends: problem() says why, and nothing more may be taken.
  Taken take(Bytes bytes);
  const std::string& problem() const { return problem_; }

 private:
  struct Expected {
    std::uint64_t tag = 0;
    std::uint64_t bytes = 0;
    std::byte* to = nullptr;
    bool begun = false;
  };
  /// Where the message goes whose frames are coming.
  enum class Place : std::uint8_t { kNone, kExpected, kEarly, kShutdown, kDropped };

  Taken begin(const FrameHead& head);
  void finish();
  Taken refuse(std::string problem);

  std::vector<Expected> expected_;
  std::size_t first_unbegun_ = 0;
  std::size_t unreceived_ = 0;

  FrameHead head_;  ///< of the message whose frames are coming; its offset is that of the next one
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

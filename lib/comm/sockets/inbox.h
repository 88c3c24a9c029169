#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/processes/transport.h"
#include "comm/sockets/messages.h"

namespace fp8lab::sockets {

/// Takes the frames of one other rank and writes messages to where they belong. Every length is compared with the
/// expected one before a byte is written.
///
/// A call may come before it is expected: ranks in different groups wait for each other's calls. What follows a
/// shutdown message belongs to the next run, and waits for it. Of such messages a rank has a few under way. Bytes of a
/// collective never come early, see Transport; those of a collective that was abandoned here are dropped.
class Inbox {
 public:
  Inbox();
  /// Begins a run. Its shutdown message is written to `message`.
  void expect_shutdown(processes::ShutdownBytes* message);
  bool shutdown_came() const { return shutdown_came_; }

  void expect(std::byte* to, std::int64_t bytes, processes::Tag tag);
  /// True if everything expected has arrived; with `calls_alone`, if the calls have.
  bool complete(bool calls_alone) const { return unreceived_calls_ == 0 && (calls_alone || unreceived_data_ == 0); }
  /// Forgets expected messages. The caller's memory is not written any more, and bytes of collectives are dropped until
  /// the next run.
  void abandon();

  /// Takes a frame. False if no rank sends it: problem() describes it, and no more frames may be taken.
  bool take(Bytes bytes);
  const std::string& problem() const { return problem_; }

 private:
  struct Expected {
    std::uint64_t tag;
    std::uint64_t bytes;
    std::byte* to;
  };
  struct Waiting {
    std::uint64_t tag = 0;
    std::size_t bytes = 0;
    processes::ShutdownBytes message{};  ///< room for the longer of the two kinds
  };

  bool take_small(const Frame& frame);
  bool take_data(const Frame& frame);
  void deliver();
  std::optional<Expected> take_expected(std::uint64_t tag);
  bool refuse(std::string problem);

  std::vector<Expected> expected_;  ///< in order; messages that have not begun to arrive
  std::size_t unreceived_calls_ = 0;
  std::size_t unreceived_data_ = 0;

  FrameHead head_;           ///< of the data that is being received; its offset is that of the next frame
  std::byte* to_ = nullptr;  ///< null: it is dropped

  std::vector<Waiting> waiting_;  ///< calls and shutdown messages, in order
  processes::ShutdownBytes* shutdown_ = nullptr;
  bool shutdown_came_ = true;
  bool abandoned_ = false;
  std::string problem_;
};

}  // namespace fp8lab::sockets

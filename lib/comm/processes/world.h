#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/processes/transport.h"
#include "comm/run.h"

namespace fp8lab::processes {

/// One run as this rank sees it. When a rank's function has ended, the rank sends a shutdown message to every other
/// rank: how its function ended, and why. So ranks that wait for a failed rank learn of its failure, and all ranks
/// agree on the first cause.
class World {
 public:
  World(Transport& transport, const RunOptions& options);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Transport& transport() { return transport_; }
  std::chrono::nanoseconds timeout() const { return timeout_; }

  /// Ends the run for a reason that this rank found. Only the first reason is kept.
  void abort(const std::string& reason);
  bool aborted() const { return cause_.has_value(); }
  /// The cause of the end, once aborted().
  const std::string& reason() const { return cause_->reason; }

  /// Forgets unfinished messages, whose memory is about to be freed. If one may still use it, `memory` is kept for
  /// ever and the transport is broken off.
  void abandon_messages(std::shared_ptr<void> memory);
  /// Reads shutdown messages that have arrived, and checks for a stop from outside.
  void listen();
  /// True if the function of another rank has ended, well or not, or a process is lost.
  bool anyone_left() const { return ended_count_ > 0; }
  bool has_left(int rank) const { return ended_[static_cast<std::size_t>(rank)]; }

  /// Sends this rank's shutdown message, waits for the shutdown message of every other rank, and throws the first cause
  /// if there is one. `failure` is the exception by which this rank's function ended, if any.
  void conclude(const std::optional<Failure>& failure);

 private:
  struct Cause {
    Ending ending;
    std::string reason;
    bool out_of_memory = false;
  };
  static Shutdown to_shutdown(const std::optional<Cause>& cause, std::uint64_t next_context);
  void record_shutdown(int rank, const Shutdown& shutdown);
  bool sent_to_all() const;
  void exchange_shutdowns();
  std::string silent_rank();
  void record_silent();
  void throw_first_cause() const;

  Transport& transport_;
  std::chrono::nanoseconds timeout_;
  std::optional<std::chrono::nanoseconds> shutdown_timeout_;
  std::stop_token stop_;
  std::optional<Cause> cause_;
  std::shared_ptr<ShutdownMessages> messages_;  ///< as received; this rank's own entry is the one it sends
  std::vector<Shutdown> shutdowns_;             ///< by rank, once received
  std::vector<bool> ended_;
  std::string silence_;  ///< appended to the cause: a rank that did not answer
  int ended_count_ = 0;
  bool unanswered_ = false;  ///< the timeout of the shutdown messages is over
};

}  // namespace fp8lab::processes

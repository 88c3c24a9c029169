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

/// One run as this rank sees it. When its function has ended, each rank says shutdown message to every other: how it
/// ended, and why. A rank in trouble is thus heard by those who wait for it, and all agree on the first cause.
class World {
 public:
  World(Transport& transport, const RunOptions& options);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Transport& transport() { return transport_; }
  std::chrono::nanoseconds timeout() const { return timeout_; }

  /// Ends the run for a reason that this rank found. The first one stands.
  void abort(const std::string& reason);
  bool aborted() const { return cause_.has_value(); }
  /// What ended the run, once aborted().
  const std::string& reason() const { return cause_->reason; }

  /// Takes in shutdown messages that have come, and a stop from outside.
  void listen();
  /// Whether the rank's function has ended, well or not, or its process is lost.
  bool anyone_left() const { return heard_count_ > 0; }
  bool has_left(int rank) const { return heard_[static_cast<std::size_t>(rank)]; }

  /// Says shutdown message, hears everybody else's, and throws the first cause if there is one. `failure`: how this
  /// rank's function ended, if by an exception.
  void conclude(const std::optional<Failure>& failure);

 private:
  struct Cause {
    Ending ending;
    std::string reason;
    bool out_of_memory = false;
  };
  static Shutdown to_shutdown(const std::optional<Cause>& cause, std::uint64_t next_context);
  void hear(int rank, const Shutdown& shutdown);
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
  std::shared_ptr<ShutdownMessages> messages_;  ///< as they come; this rank's own is what it sends
  std::vector<Shutdown> shutdowns_;             ///< by rank, once heard
  std::vector<bool> heard_;
  std::string silence_;  ///< of a rank that did not answer, behind what ended the run
  int heard_count_ = 0;
  bool unanswered_ = false;  ///< the time for shutdown messages is over
};

}  // namespace fp8lab::processes

#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/session.h"
#include "comm/run.h"

namespace fp8lab::mpi {

/// One run as this rank sees it. When its function has ended, each rank says farewell to every other: how it ended, and
/// why. A rank in trouble is thus heard by those who wait for it, and all agree on the first cause.
class World {
 public:
  World(Session& session, const RunOptions& options);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Session& session() { return session_; }
  std::chrono::nanoseconds timeout() const { return timeout_; }

  /// Ends the run for a reason that this rank found. The first one stands.
  void abort(const std::string& reason);
  bool aborted() const { return cause_.has_value(); }
  /// What ended the run, once aborted().
  const std::string& reason() const { return cause_->reason; }

  /// Takes in farewells that have come, and a stop from outside.
  void listen();
  /// Whether the rank's function has ended, well or not.
  bool anyone_left() const { return heard_count_ > 0; }
  bool has_left(int rank) const { return heard_[static_cast<std::size_t>(rank)]; }

  /// Says farewell, hears everybody else's, and throws the first cause if there is one. `failure`: how this rank's
  /// function ended, if by an exception.
  void conclude(const std::optional<Failure>& failure);

 private:
  enum class Ending : std::int32_t { kWell, kByDeath, kByFinding, kByEcho };
  struct Farewell {
    Ending ending = Ending::kWell;
    bool out_of_memory = false;
    std::uint64_t next_context = 0;
    std::array<char, 2048> reason{};
  };
  struct Cause {
    Ending ending;
    std::string reason;
    bool out_of_memory = false;
  };
  static Farewell to_farewell(const std::optional<Cause>& cause, std::uint64_t next_context);
  void hear(int rank);
  void exchange_farewells();
  void throw_first_cause() const;

  Session& session_;
  std::chrono::nanoseconds timeout_;
  std::stop_token stop_;
  std::optional<Cause> cause_;
  /// By rank; this rank's own is what it sends.
  std::shared_ptr<std::vector<Farewell>> farewells_;
  std::vector<MPI_Request> arrivals_;
  std::vector<bool> heard_;
  int heard_count_ = 0;
};

}  // namespace fp8lab::mpi

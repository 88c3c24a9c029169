#include "comm/mpi/world.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>

#include "core/check.h"

namespace fp8lab::mpi {
namespace {

// Collectives take the tags from 2 on.
constexpr int kFarewellTag = 1;

}  // namespace

World::World(Session& session, const RunOptions& options)
    : session_(session),
      timeout_(options.timeout),
      stop_(options.stop),
      farewells_(std::make_shared<std::vector<Farewell>>(static_cast<std::size_t>(session.size()))),
      arrivals_(farewells_->size(), MPI_REQUEST_NULL),
      heard_(farewells_->size(), false) {
  for (int rank = 0; rank < session_.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (rank != session_.rank())
      session_.must(MPI_Irecv(&(*farewells_)[at], sizeof(Farewell), MPI_BYTE, rank, kFarewellTag, session_.comm(),
                              &arrivals_[at]),
                    "MPI_Irecv");
  }
}

void World::abort(const std::string& reason) {
  if (!cause_) cause_ = Cause{.ending = Ending::kByFinding, .reason = reason};
}

void World::listen() {
  for (int rank = 0; rank < session_.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (rank == session_.rank() || heard_[at]) continue;
    int come = 0;
    session_.must(MPI_Test(&arrivals_[at], &come, MPI_STATUS_IGNORE), "MPI_Test");
    if (come != 0) hear(rank);
  }
  if (stop_.stop_requested()) abort(std::string(kStoppedFromOutside));
}

void World::conclude(const std::optional<Failure>& failure) {
  listen();
  if (failure && !failure->echo && !cause_)
    cause_ = Cause{.ending = Ending::kByDeath, .reason = failure->reason, .out_of_memory = failure->out_of_memory};
  (*farewells_)[static_cast<std::size_t>(session_.rank())] = to_farewell(cause_, session_.next_context);
  exchange_farewells();
  for (const Farewell& farewell : *farewells_)
    session_.next_context = std::max(session_.next_context, farewell.next_context);
  throw_first_cause();
}

World::Farewell World::to_farewell(const std::optional<Cause>& cause, std::uint64_t next_context) {
  Farewell farewell{.next_context = next_context};
  if (!cause) return farewell;
  farewell.ending = cause->ending;
  farewell.out_of_memory = cause->out_of_memory;
  std::copy_n(cause->reason.begin(), std::min(cause->reason.size(), farewell.reason.size() - 1),
              farewell.reason.begin());
  return farewell;
}

void World::hear(int rank) {
  const auto at = static_cast<std::size_t>(rank);
  heard_[at] = true;
  ++heard_count_;
  const Farewell& farewell = (*farewells_)[at];
  if (farewell.ending == Ending::kWell || cause_) return;
  const std::string reason = farewell.reason.data();
  cause_ =
      Cause{.ending = Ending::kByEcho,
            .reason = farewell.ending == Ending::kByDeath ? fmt::format("rank {} died: {}", rank, reason) : reason};
}

/// Others may go on for as long as they like; but once the run has failed they have only the timeout to notice.
void World::exchange_farewells() {
  Requests sends(session_);
  const auto* own = reinterpret_cast<const std::byte*>(&(*farewells_)[static_cast<std::size_t>(session_.rank())]);
  for (int rank = 0; rank < session_.size(); ++rank)
    if (rank != session_.rank()) sends.send(own, sizeof(Farewell), rank, kFarewellTag);

  std::optional<std::chrono::steady_clock::time_point> deadline;
  bool sent = false;
  while (!sent || heard_count_ + 1 < session_.size()) {
    sent = sent || sends.finished();
    listen();
    if (cause_ && !deadline) deadline = std::chrono::steady_clock::now() + timeout_;
    if (!deadline || std::chrono::steady_clock::now() < *deadline) {
      std::this_thread::yield();
      continue;
    }
    session_.keep_forever(farewells_);
    session_.break_off(fmt::format("a run failed, and not every rank answered in time: {}", reason()));
    return;
  }
}

/// Every rank has the same farewells before it, so all choose the same.
void World::throw_first_cause() const {
  for (const Ending ending : {Ending::kByDeath, Ending::kByFinding, Ending::kByEcho}) {
    for (int rank = 0; rank < session_.size(); ++rank) {
      const Farewell& farewell = (*farewells_)[static_cast<std::size_t>(rank)];
      if (farewell.ending != ending) continue;
      const bool own = rank == session_.rank();  // whole, where a farewell may be cut short
      const Failure failure{.reason = own ? reason() : farewell.reason.data(), .out_of_memory = farewell.out_of_memory};
      if (ending == Ending::kByDeath) throw_failure(failure, rank, session_.size());
      fail(failure.reason);
    }
  }
}

}  // namespace fp8lab::mpi

#include "comm/processes/world.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/check.h"

namespace fp8lab::processes {
World::World(Transport& transport, const RunOptions& options)
    : transport_(transport),
      timeout_(options.timeout),
      farewell_timeout_(options.farewell_timeout),
      stop_(options.stop),
      farewells_(std::make_shared<Farewells>(static_cast<std::size_t>(transport.size()))),
      heard_(farewells_->size(), false) {
  transport_.expect_farewells(farewells_);
}

void World::abort(const std::string& reason) {
  if (!cause_) cause_ = Cause{.ending = Ending::kByFinding, .reason = reason};
}

void World::listen() {
  for (int rank = 0; rank < transport_.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (rank == transport_.rank() || heard_[at]) continue;
    if (!transport_.farewell_came(rank)) {
      const std::string lost = transport_.lost(rank);
      if (lost.empty()) continue;
      (*farewells_)[at] = to_farewell(Cause{.ending = Ending::kByDeath, .reason = lost}, 0);
    }
    hear(rank);
  }
  if (stop_.stop_requested()) abort(std::string(kStoppedFromOutside));
}

void World::conclude(const std::optional<Failure>& failure) {
  listen();
  transport_.await_only_farewells();
  if (failure && !failure->echo && !cause_)
    cause_ = Cause{.ending = Ending::kByDeath, .reason = failure->reason, .out_of_memory = failure->out_of_memory};
  (*farewells_)[static_cast<std::size_t>(transport_.rank())] = to_farewell(cause_, transport_.next_context);
  exchange_farewells();
  for (const Farewell& farewell : *farewells_)
    transport_.next_context = std::max(transport_.next_context, farewell.next_context);
  throw_first_cause();
}

Farewell World::to_farewell(const std::optional<Cause>& cause, std::uint64_t next_context) {
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

/// A rank that is lost listens no more.
bool World::said_to_all() const {
  if (transport_.finished()) return true;
  const std::vector<int> unfinished = transport_.unfinished_ranks();
  return std::all_of(unfinished.begin(), unfinished.end(), [&](int rank) { return !transport_.lost(rank).empty(); });
}

/// Others may go on for as long as they like, unless they were given a time for it; but once the run has failed they have only
/// the timeout to notice.
void World::exchange_farewells() {
  const auto* own = reinterpret_cast<const std::byte*>(&(*farewells_)[static_cast<std::size_t>(transport_.rank())]);
  for (int rank = 0; rank < transport_.size(); ++rank)
    if (rank != transport_.rank()) transport_.send(own, sizeof(Farewell), rank, Tag{});

  std::optional<std::chrono::steady_clock::time_point> deadline;
  if (farewell_timeout_) deadline = std::chrono::steady_clock::now() + *farewell_timeout_;
  bool said = false;
  while (!said || heard_count_ + 1 < transport_.size()) {
    said = said || said_to_all();
    listen();
    if (cause_ && !deadline) deadline = std::chrono::steady_clock::now() + timeout_;
    if (!deadline || std::chrono::steady_clock::now() < *deadline) {
      transport_.pause();
      continue;
    }
    transport_.keep_forever(farewells_);
    unanswered_ = true;
    note_silent();
    return transport_.break_off(fmt::format("a run failed, and not every rank answered in time: {}", reason()));
  }
  for (int rank = 0; rank < transport_.size(); ++rank)
    if (const std::string lost = transport_.lost(rank); !lost.empty())
      return transport_.break_off(fmt::format("rank {}: {}", rank, lost));
}

/// One that has said no farewell, or takes none.
std::string World::silent_rank() {
  for (int rank = 0; rank < transport_.size(); ++rank)
    if (rank != transport_.rank() && !has_left(rank)) return fmt::format("rank {}", rank);
  for (const int rank : transport_.unfinished_ranks())
    if (transport_.lost(rank).empty()) return fmt::format("rank {}", rank);
  return "a rank";
}

/// What stops a run from outside knows of no rank that is missing; nor does a run that went well so far.
void World::note_silent() {
  if (cause_ && reason() != kStoppedFromOutside) return;
  const std::string silence =
      fmt::format("{} did not answer within {:g} s", silent_rank(),
                  std::chrono::duration<double>(farewell_timeout_.value_or(timeout_)).count());
  if (cause_)
    silence_ = "; " + silence;
  else
    abort(silence);
}

/// Every rank has the same farewells before it, so all choose the same.
void World::throw_first_cause() const {
  for (const Ending ending : {Ending::kByDeath, Ending::kByFinding, Ending::kByEcho}) {
    for (int rank = 0; rank < transport_.size(); ++rank) {
      const Farewell& farewell = (*farewells_)[static_cast<std::size_t>(rank)];
      if (farewell.ending != ending) continue;
      const bool own = rank == transport_.rank();  // whole, where a farewell may be cut short
      const Failure failure{.reason = own ? reason() : farewell.reason.data(), .out_of_memory = farewell.out_of_memory};
      if (transport_.broken())
        throw RanksLost((ending == Ending::kByDeath ? fmt::format("rank {}: {}", rank, failure.reason) : failure.reason) + silence_);
      if (ending == Ending::kByDeath) throw_failure(failure, rank, transport_.size());
      fail(failure.reason);
    }
  }
  // What ended the run came after this rank had said farewell, and the others know nothing of it.
  if (unanswered_) throw RanksLost(reason() + silence_);
}

}  // namespace fp8lab::processes

#include "comm/processes/world.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/check.h"

namespace fp8lab::processes {
namespace {

constexpr const char* kUnreadable = "it sent a shutdown message that cannot be read";

}  // namespace

World::World(Transport& transport, const RunOptions& options)
    : transport_(transport),
      timeout_(options.timeout),
      shutdown_timeout_(options.shutdown_timeout),
      stop_(options.stop),
      messages_(std::make_shared<ShutdownMessages>(static_cast<std::size_t>(transport.size()))),
      shutdowns_(messages_->size()),
      ended_(messages_->size(), false) {
  transport_.expect_shutdowns(messages_);
}

void World::abort(const std::string& reason) {
  if (!cause_) cause_ = Cause{.ending = Ending::kByFinding, .reason = reason};
}

void World::listen() {
  for (int rank = 0; rank < transport_.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (rank == transport_.rank() || ended_[at]) continue;
    if (transport_.shutdown_received(rank)) {
      const std::optional<Shutdown> read = read_shutdown((*messages_)[at], transport_.largest_context());
      record_shutdown(rank, read ? *read : Shutdown{.ending = Ending::kByDeath, .reason = kUnreadable});
    } else if (const std::string lost = transport_.lost(rank); !lost.empty()) {
      record_shutdown(rank, {.ending = Ending::kByDeath, .reason = lost});
    }
  }
  if (stop_.stop_requested()) abort(std::string(kStoppedFromOutside));
}

void World::abandon_messages(std::shared_ptr<void> memory) {
  if (transport_.broken() || transport_.abandon(ended_)) return;
  if (memory) transport_.keep_forever(std::move(memory));
  transport_.break_off(aborted() ? reason() : "a message that had begun could not be abandoned");
}

void World::conclude(const std::optional<Failure>& failure) {
  if (failure) abandon_messages({});
  transport_.check_usable();  // a transport that is broken off may still use memory that is freed by now
  listen();
  if (failure && !failure->echo && !cause_)
    cause_ = Cause{.ending = Ending::kByDeath, .reason = failure->reason, .out_of_memory = failure->out_of_memory};
  const auto own = static_cast<std::size_t>(transport_.rank());
  shutdowns_[own] = to_shutdown(cause_, transport_.next_context);
  (*messages_)[own] = write(shutdowns_[own]);
  exchange_shutdowns();
  for (const Shutdown& shutdown : shutdowns_)
    transport_.next_context = std::max(transport_.next_context, shutdown.next_context);
  throw_first_cause();
}

Shutdown World::to_shutdown(const std::optional<Cause>& cause, std::uint64_t next_context) {
  Shutdown shutdown{.next_context = next_context};
  if (!cause) return shutdown;
  shutdown.ending = cause->ending;
  shutdown.out_of_memory = cause->out_of_memory;
  shutdown.reason = cause->reason;
  return shutdown;
}

void World::record_shutdown(int rank, const Shutdown& shutdown) {
  const auto at = static_cast<std::size_t>(rank);
  ended_[at] = true;
  ++ended_count_;
  shutdowns_[at] = shutdown;
  if (shutdown.ending == Ending::kWell || cause_) return;
  const bool died = shutdown.ending == Ending::kByDeath;
  cause_ = Cause{.ending = Ending::kByEcho,
                 .reason = died ? fmt::format("rank {} died: {}", rank, shutdown.reason) : shutdown.reason};
}

/// True if every rank that is not lost has received this rank's shutdown message. A lost rank receives nothing.
bool World::sent_to_all() const {
  if (transport_.finished(Awaited::kAll)) return true;
  const std::vector<int> unfinished = transport_.unfinished_ranks(Awaited::kAll);
  return std::all_of(unfinished.begin(), unfinished.end(), [&](int rank) { return !transport_.lost(rank).empty(); });
}

/// Without a shutdown timeout, other ranks may run for as long as they like. Once the run has failed, they have only
/// the timeout to notice it.
void World::exchange_shutdowns() {
  const ShutdownBytes& own = (*messages_)[static_cast<std::size_t>(transport_.rank())];
  for (int rank = 0; rank < transport_.size(); ++rank)
    if (rank != transport_.rank()) transport_.send(own.data(), sizeof own, rank, Tag{});

  std::optional<std::chrono::steady_clock::time_point> deadline;
  if (shutdown_timeout_) deadline = std::chrono::steady_clock::now() + *shutdown_timeout_;
  bool sent = false;
  while (!sent || ended_count_ + 1 < transport_.size()) {
    sent = sent || sent_to_all();
    listen();
    if (cause_ && !deadline) deadline = std::chrono::steady_clock::now() + timeout_;
    if (!deadline || std::chrono::steady_clock::now() < *deadline) {
      transport_.pause();
      continue;
    }
    transport_.keep_forever(messages_);
    unanswered_ = true;
    record_silent();
    return transport_.break_off(fmt::format("a run failed, and not every rank answered in time: {}", reason()));
  }
  for (int rank = 0; rank < transport_.size(); ++rank)
    if (const std::string lost = transport_.lost(rank); !lost.empty())
      return transport_.break_off(fmt::format("rank {}: {}", rank, lost));
}

/// A rank that has sent no shutdown message, or does not receive one.
std::string World::silent_rank() {
  for (int rank = 0; rank < transport_.size(); ++rank)
    if (rank != transport_.rank() && !has_left(rank)) return fmt::format("rank {}", rank);
  for (const int rank : transport_.unfinished_ranks(Awaited::kAll))
    if (transport_.lost(rank).empty()) return fmt::format("rank {}", rank);
  return "a rank";
}

/// Reports the rank that did not answer, if the cause names no rank: after a stop from outside, or in a run that went
/// well so far.
void World::record_silent() {
  if (cause_ && reason() != kStoppedFromOutside) return;
  const std::string silence = fmt::format("{} did not answer within {:g} s", silent_rank(),
                                          std::chrono::duration<double>(shutdown_timeout_.value_or(timeout_)).count());
  if (cause_)
    silence_ = "; " + silence;
  else
    abort(silence);
}

/// All ranks have the same shutdown messages, so all choose the same cause.
void World::throw_first_cause() const {
  for (const Ending ending : {Ending::kByDeath, Ending::kByFinding, Ending::kByEcho}) {
    for (int rank = 0; rank < transport_.size(); ++rank) {
      const Shutdown& shutdown = shutdowns_[static_cast<std::size_t>(rank)];
      if (shutdown.ending != ending) continue;
      const Failure failure{.reason = shutdown.reason, .out_of_memory = shutdown.out_of_memory};
      if (transport_.broken())
        throw RanksLost(
            (ending == Ending::kByDeath ? fmt::format("rank {}: {}", rank, failure.reason) : failure.reason) +
            silence_);
      if (ending == Ending::kByDeath) throw_failure(failure, rank, transport_.size());
      fail(failure.reason);
    }
  }
  // The cause came after this rank had sent its shutdown message, so the other ranks do not know it.
  if (unanswered_) throw RanksLost(reason() + silence_);
}

}  // namespace fp8lab::processes

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/processes/messages.h"

namespace fp8lab::processes {

using ShutdownMessages = std::vector<ShutdownBytes>;  ///< by rank

/// What tells the messages of groups apart. Context 0 is that of shutdown messages.
struct Tag {
  std::uint64_t context = 0;
  bool data = true;  ///< bytes of a collective; else the call itself

  constexpr std::uint64_t number() const { return 2 * context + (data ? 1 : 0); }
};

/// Messages between this process and those of the other ranks, for as long as it lives: all that a way of running ranks
/// as processes has to provide. Messages of one tag between two ranks arrive in order. Used by one thread.
class Transport {
 public:
  Transport(std::string_view name, int rank, int size) : name_(name), rank_(rank), size_(size) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  virtual std::uint64_t largest_context() const { return std::numeric_limits<std::uint64_t>::max() / 2; }

  /// Number of the next message context; every rank has the same one between runs.
  std::uint64_t next_context = 1;

  /// Begins a message, which uses its memory until it is finished. One of 0 bytes is none.
  virtual void receive(std::byte* to, std::int64_t bytes, int from_rank, Tag tag) = 0;
  virtual void send(const std::byte* from, std::int64_t bytes, int to_rank, Tag tag) = 0;
  /// Whether all that were begun are finished; they are forgotten then.
  virtual bool finished() = 0;
  /// Ranks with messages that are not, in order, once each.
  virtual std::vector<int> unfinished_ranks() = 0;
  /// Forgets them all. The other side never takes what was abandoned for complete. False if memory of the caller may
  /// still be written.
  virtual bool abandon() = 0;
  /// Lets others have the processor, for a moment or until something comes.
  virtual void pause() = 0;

  /// Begins a run: from now on each other rank's shutdown message is awaited, to be written to its place.
  virtual void expect_shutdowns(std::shared_ptr<ShutdownMessages> messages) = 0;
  virtual bool shutdown_received(int rank) = 0;
  /// Nothing but shutdown messages is awaited any more; what else comes in this run is dropped.
  virtual void await_only_shutdowns() {}
  /// Why `rank`'s process can no longer be reached, or nothing. It sends no shutdown message then.
  virtual std::string lost(int) const { return {}; }

  /// Another process no longer answers: nothing is sent to any again, nor awaited.
  void break_off(std::string reason) {
    broken_ = std::move(reason);
    hang_up();
  }
  bool broken() const { return !broken_.empty(); }
  /// Throws unless this thread may use this, and it is in full: else RanksLost.
  void check_usable() const;

  /// For memory that an unfinished message may still use.
  void keep_forever(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

 protected:
  /// What check_usable() adds.
  virtual void check_thread() const {}
  virtual void hang_up() {}

 private:
  std::string_view name_;
  int rank_;
  int size_;
  std::string broken_;
  std::vector<std::shared_ptr<void>> kept_;
};

}  // namespace fp8lab::processes

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

/// Distinguishes the messages of different groups. Context 0 belongs to shutdown messages.
struct Tag {
  std::uint64_t context = 0;
  bool data = true;  ///< true: bytes of a collective; false: the call itself

  constexpr std::uint64_t number() const { return 2 * context + (data ? 1 : 0); }
  static constexpr bool is_collective_data(std::uint64_t number) { return number > 1 && number % 2 == 1; }
};

/// Which messages a caller waits for: all, or all but received bytes of collectives.
enum class Awaited : std::uint8_t { kCalls, kAll };

/// Messages between this process and other ranks' processes, for the life of the process. This interface is all that
/// a kind of ranks as processes has to implement. Messages of one tag between two ranks arrive in order. Bytes of a
/// collective are sent only once the other rank's call has come, and that begins to receive them before its call; so
/// no rank has to keep what no rank expects. Used by one thread.
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

  /// Begins a message, which uses its memory until it is finished. A message of 0 bytes is not sent.
  virtual void receive(std::byte* to, std::int64_t bytes, int from_rank, Tag tag) = 0;
  virtual void send(const std::byte* from, std::int64_t bytes, int to_rank, Tag tag) = 0;
  /// True if the begun messages are finished; they are then forgotten.
  virtual bool finished(Awaited awaited) = 0;
  /// The ranks of unfinished messages, in order, once each.
  virtual std::vector<int> unfinished_ranks(Awaited awaited) = 0;
  /// Forgets all unfinished messages. The other side never treats an abandoned message as complete. `left`, by rank:
  /// its function has ended, so it receives nothing more. False if memory of the caller may still be used.
  virtual bool abandon(const std::vector<bool>& left) = 0;
  /// Yields the processor, for a moment or until a message arrives.
  virtual void pause() = 0;

  /// Begins a run: from now on the shutdown message of every other rank is awaited, and written to its entry of
  /// `messages`.
  virtual void expect_shutdowns(std::shared_ptr<ShutdownMessages> messages) = 0;
  virtual bool shutdown_received(int rank) = 0;
  /// Why `rank`'s process can no longer be reached, or nothing. A lost rank sends no shutdown message.
  virtual std::string lost(int) const { return {}; }

  /// To be called when another process no longer responds: nothing more is sent to any rank, or awaited from one.
  void break_off(std::string reason) {
    broken_ = std::move(reason);
    hang_up();
  }
  bool broken() const { return !broken_.empty(); }
  /// Throws Error if this thread may not use the transport, and RanksLost if it is broken off.
  void check_usable() const;

  /// Keeps memory that an unfinished message may still use.
  void keep_forever(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }

 protected:
  /// Part of check_usable(): throws if this thread may not use the transport.
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

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/in_process/deadlock.h"
#include "comm/run.h"
#include "comm/signature.h"

namespace fp8lab::in_process {

class GroupState;

/// State that the ranks of one run share: how the run ended early, if it did, each rank's present call, and all groups.
class World {
 public:
  explicit World(const RunOptions& options);
  ~World();

  std::chrono::nanoseconds timeout() const { return timeout_; }
  PeerCopyPath peer_copies() const { return peer_copies_; }

  /// Ends the run for every rank: pending and later barriers fail. Only the first cause is kept. `rank` is the rank
  /// whose failure it is, or -1.
  void abort(Failure failure, int rank = -1);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  /// The cause of the end, once aborted().
  std::string reason() const;
  /// Throws the cause of the end, if there is one.
  void throw_cause() const;

  /// Records that the rank's function has returned, so that it joins no further collective.
  void leave(int rank);
  bool has_left(int rank) const {
    return activities_[static_cast<std::size_t>(rank)].left.load(std::memory_order_acquire);
  }

  void begin(int rank, const GroupState& group_state, const Signature& call);
  void complete(int rank);
  /// The group whose collective the rank is in, or null.
  const GroupState* pending_group(int rank) const;
  /// "barrier 'x' (#2) of group 'world'"; empty if the rank is in none.
  std::string pending_call(int rank) const;
  bool waits(const Wait& wait) const;
  /// Ends the run if `rank`, which is about to sleep in a collective, and others wait for each other.
  void abort_deadlock(int rank);
  /// A clause for the error about a missing rank: the last collective it completed, and the one in which it waits now.
  std::string whereabouts(int rank) const;

  struct GroupKey {
    const GroupState* parent = nullptr;
    /// Number of the call, among those that made groups of `parent`. Groups that wrap another one count their own
    /// calls.
    std::uint64_t number = 0;
    int color = 0;
    bool on_gpus = false;
    bool operator==(const GroupKey&) const = default;
  };
  /// The group of `key`. The first member that calls this makes it; it lives as long as the run.
  GroupState& group_state(const GroupKey& key, const std::string& name, const std::vector<int>& world_ranks);

 private:
  struct Call {
    const GroupState* group_state = nullptr;
    Signature signature;
  };
  static std::string describe(const Call& call);
  struct alignas(64) Activity {
    explicit Activity(int ranks) : search(ranks) {}
    std::atomic<bool> left{false};
    mutable std::mutex mutex;
    std::optional<Call> pending;
    std::optional<Call> completed;
    DeadlockSearch search;  ///< used only by the rank
  };
  struct KeyedGroup {
    GroupKey key;
    std::unique_ptr<GroupState> group_state;
  };
  void wake_all();

  std::chrono::nanoseconds timeout_;
  PeerCopyPath peer_copies_;
  bool launches_on_gpus_;
  std::deque<Activity> activities_;  ///< by rank

  std::atomic<bool> aborted_{false};
  mutable std::mutex cause_mutex_;
  Failure cause_;
  int cause_rank_ = -1;

  std::mutex groups_mutex_;
  std::deque<KeyedGroup> groups_;
};

}  // namespace fp8lab::in_process

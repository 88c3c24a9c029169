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

/// What the ranks of one run share: how it ended early, if it did, what each rank is at, and every group.
class World {
 public:
  explicit World(const RunOptions& options);
  ~World();

  std::chrono::nanoseconds timeout() const { return timeout_; }
  PeerCopyPath peer_copies() const { return peer_copies_; }

  /// Ends the run for every rank: pending barriers fail, and so do later ones. The first cause stands. `rank` is the
  /// one whose own failure it is, or -1.
  void abort(Failure failure, int rank = -1);
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  /// What ended the run, once aborted().
  std::string reason() const;
  /// Throws what ended the run, if anything did.
  void throw_cause() const;

  /// The rank's function has returned, so it joins no further collective.
  void leave(int rank);
  bool has_left(int rank) const {
    return activities_[static_cast<std::size_t>(rank)].left.load(std::memory_order_acquire);
  }

  void begin(int rank, const GroupState& group_state, const Signature& call);
  void complete(int rank);
  /// The group in whose collective the rank is, or null.
  const GroupState* pending_group(int rank) const;
  /// "barrier 'x' (#2) of group 'world'"; empty where the rank is in none.
  std::string pending_call(int rank) const;
  bool waits(const Wait& wait) const;
  /// Ends the run if `rank`, which is about to sleep in a collective, and others wait for each other.
  void abort_deadlock(int rank);
  /// A clause for the error about a rank that does not come: the last collective it completed, and where it waits now.
  std::string whereabouts(int rank) const;

  struct GroupKey {
    const GroupState* parent = nullptr;
    std::uint64_t number =
        0;  ///< of the calls in which `parent` made process groups: groups around a group's count their own calls
    int color = 0;
    bool on_gpus = false;
    bool operator==(const GroupKey&) const = default;
  };
  /// The group of `key`, made by the first of its members to ask. Lives as long as the run.
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
    DeadlockSearch search;  ///< used by the rank alone
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

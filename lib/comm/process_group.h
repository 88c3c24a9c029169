#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/signature.h"
#include "core/check.h"
#include "core/dtype.h"
#include "memory/caching_allocator.h"

/// Collectives over the ranks of a group. run_ranks() of process_groups.h makes the first group; split() makes smaller
/// ones.
///
/// Every rank of a group issues the same collectives in the same order, each with the same label, sizes and types: the
/// lock-step rule. A call that breaks it ends in one error, equal on every rank, that names two ranks and their calls.
/// Buffers belong to the caller and must stay unchanged until the call returns; calls allocate nothing once a group has
/// seen its largest one. Buffers lie in host memory, and calls block; or, of a group that on() made, in the memory of
/// its rank's device. There a call waits for the other ranks on the host, and its bytes move in the order of the
/// device's work: behind what this rank launched before, ahead of what it launches after. So results may be used, and
/// buffers written or freed, by what is launched after the call has returned, on the host before anything has moved.
///
/// Messages number ranks as the entire run does: world_rank(), not the place inside a sub-group.
namespace fp8lab {

class Device;

/// Thrown by pending and later collectives when the run has ended early: another rank died, never came or broke the
/// lock-step rule, or the run was stopped from outside. An echo: run_ranks() reports the first cause, not this.
class GroupAborted : public Error {
 public:
  using Error::Error;
};

/// What bytes are, so that traffic tells scales from what they scale.
enum class Content : std::uint8_t { kPayload, kScales };

/// One tensor of an all-gather. Rank r's bytes land in [offsets[r], offsets[r + 1]) of `to`, on every rank.
struct GatherPart {
  /// This rank's bytes: either apart from `to`, or exactly their own place in it.
  const std::byte* from = nullptr;
  /// offsets.back() bytes.
  std::byte* to = nullptr;
  /// In bytes: size() + 1 of them, from 0 up; equal neighbours mean that a rank has none. The same on every rank.
  std::span<const std::int64_t> offsets_bytes;
  Content content = Content::kPayload;
};

/// One tensor of a reduce-scatter. Rank r is left with the sums of elements [offsets[r], offsets[r + 1]).
struct ScatterPart {
  /// offsets.back() elements, this rank's summands.
  const std::byte* from = nullptr;
  /// This rank's sums: either apart from `from`, or exactly their own place in it.
  std::byte* to = nullptr;
  /// In elements; otherwise as in GatherPart.
  std::span<const std::int64_t> offsets_elems;
  DType dtype = DType::kF32;
  Content content = Content::kPayload;
};

/// One tensor of an all-reduce, replaced by the result.
struct ReducePart {
  std::byte* data = nullptr;
  std::int64_t elems = 0;
  DType dtype = DType::kF32;
  Content content = Content::kPayload;
};

/// One tensor of a broadcast: read on the root, written elsewhere.
struct BroadcastPart {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  Content content = Content::kPayload;
};

/// What one rank has issued of one kind. Bytes are those of the entire arrays, over all ranks: the `size` of
/// nccl-tests, which depends neither on the rank nor on the algorithm.
struct TrafficCount {
  std::int64_t collectives = 0;
  std::int64_t payload_bytes = 0;
  std::int64_t scale_bytes = 0;

  bool operator==(const TrafficCount&) const = default;
};

class Traffic {
 public:
  const TrafficCount& of(CollectiveKind kind) const { return counts_[static_cast<std::size_t>(kind)]; }
  void add(CollectiveKind kind, const TrafficCount& count);

 private:
  std::array<TrafficCount, kCollectiveKinds> counts_{};
};

/// Where split() puts a rank.
struct SplitPlace {
  int color = 0;  ///< ranks of one color form a group
  int key = 0;    ///< and are ordered by key, then by rank
};

/// One rank's membership of a group. Used by that rank's thread alone; a sub-group must not outlive the run.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::string& name() const { return name_; }
  /// The number, in the entire run, of this group's `rank`.
  int world_rank(int rank) const { return world_ranks_[static_cast<std::size_t>(rank)]; }
  /// This rank's number among those on its machine.
  int local_rank() const { return local_rank_; }
  /// Whose memory buffers lie in; null: the host's.
  virtual const Device* device() const { return nullptr; }
  /// The same ranks for buffers in host memory: itself, unless on() made it or what it was split from. Lives as long.
  virtual ProcessGroup& host() { return *this; }
  /// False where collectives check and count but read and write nothing, as the `meta` device needs.
  bool moves_data() const { return moves_data_; }

  void all_gather(std::span<const GatherPart> parts, std::string_view label);
  /// The same beside the device's work: behind what was launched before, but what is launched after does not wait for
  /// it. Until join(), results may not be used, nor buffers written or freed. In host memory it is all_gather().
  void all_gather_aside(std::span<const GatherPart> parts, std::string_view label);
  /// What is launched from now on comes after every all_gather_aside() of this rank. No collective.
  virtual void join() {}

  /// Sums in float, in rank order 0, 1, ..., rounded once: the same bits on every backend. reduce.h has the rules.
  void reduce_scatter(std::span<const ScatterPart> parts, std::string_view label);

  /// A sum as in reduce_scatter; a maximum that keeps NaN and does not depend on the order of ranks.
  void all_reduce(ReduceOp op, std::span<const ReducePart> parts, std::string_view label);

  void broadcast(int root, std::span<const BroadcastPart> parts, std::string_view label);

  /// Returns when every rank has called it.
  void barrier(std::string_view label);

  /// The sub-group of this rank's color. `places` has a row for every rank of this group and is the same on all of
  /// them, so that a group whose other ranks are only simulated can be split too.
  std::unique_ptr<ProcessGroup> split(std::span<const SplitPlace> places, std::string_view name);

  /// The same ranks for buffers in the memory of `device`, this rank's own; split() passes that on. A collective: all
  /// ranks provide devices of one name, of several GPUs or of one. Both this and `device` outlive the new group.
  std::unique_ptr<ProcessGroup> on(Device& device);

  /// Where memory comes from in which this group's all-gathers are fastest: for Memory::gather_from() of the device, on
  /// every rank. Parts whose ranks have equally many bytes, and whose buffers all lie in such memory, go straight from
  /// one to the other; each buffer must then lie at the same place on every rank. Segments may outlive the group. Null
  /// where any memory of the device is as good.
  virtual std::unique_ptr<SegmentSource> gather_source() { return nullptr; }

  /// Collectives that returned, since the start or the last reset.
  const Traffic& traffic() const { return traffic_; }
  void reset_traffic() { traffic_ = {}; }

 protected:
  struct Identity {
    std::string name;
    std::vector<int> world_ranks;
    int rank = 0;
    int local_rank = 0;
    bool moves_data = true;
  };
  explicit ProcessGroup(Identity identity);

  // For groups that stand on another one: who it is, and what its backend does, with their own call.
  static Identity identity_of(const ProcessGroup& group);
  static void barrier_over(ProcessGroup& group, const Signature& call) { group.do_barrier(call); }
  template <class Part>
  static void do_over(ProcessGroup& group, const Signature& call, std::span<const Part> parts) {
    if constexpr (std::is_same_v<Part, GatherPart>) group.do_all_gather(call, parts, false);
    if constexpr (std::is_same_v<Part, ScatterPart>) group.do_reduce_scatter(call, parts);
    if constexpr (std::is_same_v<Part, ReducePart>) group.do_all_reduce(call, parts);
    if constexpr (std::is_same_v<Part, BroadcastPart>) group.do_broadcast(call, parts);
  }
  static std::unique_ptr<ProcessGroup> split_over(ProcessGroup& group, const Signature& call, int color,
                                                  Identity identity) {
    return group.do_split(call, color, std::move(identity));
  }

 private:
  // What a backend adds. Arguments are valid; the call's signature is still to be compared with those of the other
  // ranks.
  virtual void do_all_gather(const Signature& call, std::span<const GatherPart> parts, bool aside) = 0;
  virtual void do_reduce_scatter(const Signature& call, std::span<const ScatterPart> parts) = 0;
  virtual void do_all_reduce(const Signature& call, std::span<const ReducePart> parts) = 0;
  virtual void do_broadcast(const Signature& call, std::span<const BroadcastPart> parts) = 0;
  virtual void do_barrier(const Signature& call) = 0;
  virtual std::unique_ptr<ProcessGroup> do_split(const Signature& call, int color, Identity identity) = 0;
  /// `device` has a PeerAccess. Unless overridden, bytes go through this group by way of the host.
  virtual std::unique_ptr<ProcessGroup> do_on(const Signature& call, Device& device);

  void gather(std::span<const GatherPart> parts, std::string_view label, bool aside);
  Signature begin(CollectiveKind kind, std::string_view label);
  [[noreturn]] void refuse(const Signature& call, std::size_t part, const std::string& problem) const;
  std::int64_t check_offsets(const Signature& call, std::size_t part, std::span<const std::int64_t> offsets) const;
  void check_buffer(const Signature& call, std::size_t part, const std::byte* data, std::int64_t bytes,
                    std::size_t alignment = 1) const;
  void check_own_place(const Signature& call, std::size_t part, const std::byte* own, std::int64_t own_bytes,
                       const std::byte* own_place, const std::byte* full, std::int64_t unsharded_bytes) const;
  void check_reducible(const Signature& call, std::size_t part, DType dtype) const;
  void complete(const Signature& call, const TrafficCount& counted);

  std::string name_;
  std::vector<int> world_ranks_;
  int rank_;
  int local_rank_;
  bool moves_data_;
  std::uint64_t issued_ = 0;  ///< a call that is refused does not count
  Traffic traffic_;
};

}  // namespace fp8lab

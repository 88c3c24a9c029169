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
/// Lock-step rule: every rank of a group issues the same collectives in the same order, each with the same label, sizes
/// and types. A call that breaks the rule ends in one error, equal on every rank, that names two ranks and their calls.
///
/// Buffers belong to the caller and must stay unchanged until the call returns. Calls allocate nothing once a group has
/// executed its largest one. Buffers lie in host memory, and then calls block; in a group that for_device() made they
/// lie in the memory of the rank's device. There a call waits for the other ranks on the host only, and its bytes move
/// in stream order: after what this rank launched before the call and before what it launches afterwards. So work that
/// is launched after the call may use its results, and write or free its buffers. The host may not, because the call
/// may return before anything has moved.
///
/// Messages number ranks as in the entire run, by world_rank(), not by the rank in a sub-group.
namespace fp8lab {

class Device;

/// Thrown by pending and later collectives when the run has ended early: another rank died, never came or broke the
/// lock-step rule, or the run was stopped from outside. It is a consequence: run_ranks() reports the first cause
/// instead.
class GroupAborted : public Error {
 public:
  using Error::Error;
};

/// What the bytes are. Traffic counts scales apart from payload.
enum class Content : std::uint8_t { kPayload, kScales };

/// One tensor of an all-gather. On every rank, rank r's bytes land in [offsets[r], offsets[r + 1]) of `to`.
struct GatherPart {
  /// This rank's bytes: either outside of `to`, or exactly at their own place in it.
  const std::byte* from = nullptr;
  /// offsets.back() bytes.
  std::byte* to = nullptr;
  /// In bytes: size() + 1 offsets from 0 up; equal neighbours mean that a rank has no bytes. The same on every rank.
  std::span<const std::int64_t> offsets_bytes;
  Content content = Content::kPayload;
};

/// One tensor of a reduce-scatter. Rank r gets the sums of elements [offsets[r], offsets[r + 1]).
struct ScatterPart {
  /// offsets.back() elements, this rank's summands.
  const std::byte* from = nullptr;
  /// This rank's sums: either outside of `from`, or exactly at their own place in it.
  std::byte* to = nullptr;
  /// In elements; otherwise as GatherPart::offsets_bytes.
  std::span<const std::int64_t> offsets_elems;
  DType dtype = DType::kF32;
  Content content = Content::kPayload;
};

/// One tensor of an all-reduce, which the result replaces.
struct ReducePart {
  std::byte* data = nullptr;
  std::int64_t elems = 0;
  DType dtype = DType::kF32;
  Content content = Content::kPayload;
};

/// One tensor of a broadcast: read on the root, written on the other ranks.
struct BroadcastPart {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  Content content = Content::kPayload;
};

/// One tensor of a ring exchange: `from` goes to the rank that is `shift` further, and the bytes of the rank that is
/// `shift` before come to `to`. Every rank sends the same number of bytes. The two must not overlap.
struct ExchangePart {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t bytes = 0;
  Content content = Content::kPayload;
};

/// One tensor of an all-to-all, in which ranks send each other different numbers of bytes. `from` holds what this rank
/// sends, to rank 0 first, and `to` what it receives, from rank 0 first. The two must not overlap.
struct AllToAllPart {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  /// size() * size() numbers: entry s * size() + d is what rank s sends to rank d, in bytes. The same on every rank, so
  /// that ranks exchange their counts before.
  std::span<const std::int64_t> bytes;
  Content content = Content::kPayload;
};

/// The collectives of one kind that one rank has issued. Bytes count the full arrays, over all ranks: the `size`
/// of nccl-tests, which depends neither on the rank nor on the algorithm.
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

/// The sub-group of a rank in split().
struct SplitPlace {
  int color = 0;  ///< ranks of one color form a group
  int key = 0;    ///< orders the ranks of a group; ties are ordered by rank
};

/// One rank's membership of a group. Used only by that rank's thread. A sub-group must not outlive the run.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::string& name() const { return name_; }
  /// The rank in the entire run of this group's `rank`.
  int world_rank(int rank) const { return world_ranks_[static_cast<std::size_t>(rank)]; }
  /// This rank's number among the ranks of its machine.
  int local_rank() const { return local_rank_; }
  /// The device whose memory buffers lie in; null: host memory.
  virtual const Device* device() const { return nullptr; }
  /// The same ranks for buffers in host memory. This is the group itself, unless for_device() made it or the group that
  /// it was split from. Lives as long as this group.
  virtual ProcessGroup& host() { return *this; }
  /// False if collectives check and count but move no bytes, as the `meta` device needs.
  bool moves_data() const { return moves_data_; }

  void all_gather(std::span<const GatherPart> parts, std::string_view label);
  /// All-gather on a stream of its own: it comes after what was launched before, but later work does not wait for it.
  /// Until wait_for_async(), its results must not be used, and its buffers must not be written or freed. In host memory
  /// it is all_gather().
  void all_gather_async(std::span<const GatherPart> parts, std::string_view label);
  /// Makes later work wait for every all_gather_async() of this rank. Not a collective.
  virtual void wait_for_async() {}

  /// Sums in float, in rank order 0, 1, ..., rounded once, so that every backend gives the same bits. Rules: reduce.h.
  void reduce_scatter(std::span<const ScatterPart> parts, std::string_view label);

  /// A sum as in reduce_scatter(), or a maximum that keeps NaN and does not depend on the order of ranks.
  void all_reduce(ReduceOp op, std::span<const ReducePart> parts, std::string_view label);

  void broadcast(int root, std::span<const BroadcastPart> parts, std::string_view label);

  /// Rank r sends to rank (r + shift) mod size() and receives from rank (r - shift) mod size(), so that size() - 1
  /// exchanges by 1 pass every rank's bytes on to all others. `shift` is any number but a multiple of size(), unless
  /// there is one rank, and the same on every rank. It counts as one collective of size() times a part's bytes.
  void ring_exchange(int shift, std::span<const ExchangePart> parts, std::string_view label);

  /// Each rank sends other bytes to each rank, its own included. It counts as one collective of the bytes that all
  /// ranks send. A rank that sends and receives nothing calls it too.
  void all_to_all(std::span<const AllToAllPart> parts, std::string_view label);

  /// Returns when every rank has called it.
  void barrier(std::string_view label);

  /// The sub-group of this rank's color. `places` has one entry for every rank of this group and is the same on all of
  /// them, so that a group whose other ranks are only simulated can be split too.
  std::unique_ptr<ProcessGroup> split(std::span<const SplitPlace> places, std::string_view name);

  /// The same ranks for buffers in the memory of `device`, which belongs to this rank; groups split from it use
  /// `device` too. A collective: all ranks pass devices of one name, on several GPUs or on one. This group and `device`
  /// must outlive the new group.
  std::unique_ptr<ProcessGroup> for_device(Device& device);

  /// A source of memory in which this group's all-gathers are fastest, for Memory::gather_from() of the device on every
  /// rank. Parts in which every rank has equally many bytes, and whose buffers all lie in such memory, are written
  /// directly from GPU to GPU; each buffer must then lie at the same place on every rank. Segments may outlive the
  /// group. Null if any memory of the device is as good.
  virtual std::unique_ptr<SegmentSource> gather_source() { return nullptr; }

  /// Collectives that have returned since the start or the last reset.
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

  // For groups that wrap another one: its identity, and its backend's operations with the wrapping group's signature.
  static Identity identity_of(const ProcessGroup& group);
  static void barrier_over(ProcessGroup& group, const Signature& call) { group.do_barrier(call); }
  template <class Part>
  static void do_over(ProcessGroup& group, const Signature& call, std::span<const Part> parts) {
    if constexpr (std::is_same_v<Part, GatherPart>) group.do_all_gather(call, parts, false);
    if constexpr (std::is_same_v<Part, ScatterPart>) group.do_reduce_scatter(call, parts);
    if constexpr (std::is_same_v<Part, ReducePart>) group.do_all_reduce(call, parts);
    if constexpr (std::is_same_v<Part, BroadcastPart>) group.do_broadcast(call, parts);
    if constexpr (std::is_same_v<Part, ExchangePart>) group.do_ring_exchange(call, parts);
    if constexpr (std::is_same_v<Part, AllToAllPart>) group.do_all_to_all(call, parts);
  }
  /// In a ring exchange: the rank that this rank sends to, and the rank that it receives from.
  int receiver(const Signature& call) const { return (rank_ + call.shift) % size(); }
  int sender(const Signature& call) const { return (rank_ - call.shift + size()) % size(); }
  // In an all-to-all: the bytes that `sender` sends to `receiver`; their place in what the one sends, and in what the
  // other receives.
  std::int64_t bytes_between(const AllToAllPart& part, int sender, int receiver) const {
    return part.bytes[static_cast<std::size_t>(sender) * world_ranks_.size() + static_cast<std::size_t>(receiver)];
  }
  std::int64_t place_sent(const AllToAllPart& part, int sender, int receiver) const;
  std::int64_t place_received(const AllToAllPart& part, int sender, int receiver) const;
  static std::unique_ptr<ProcessGroup> split_over(ProcessGroup& group, const Signature& call, int color,
                                                  Identity identity) {
    return group.do_split(call, color, std::move(identity));
  }

 private:
  // The operations of a backend. Arguments have been checked. The backend compares the call's signature with the
  // other ranks' signatures.
  virtual void do_all_gather(const Signature& call, std::span<const GatherPart> parts, bool async) = 0;
  virtual void do_reduce_scatter(const Signature& call, std::span<const ScatterPart> parts) = 0;
  virtual void do_all_reduce(const Signature& call, std::span<const ReducePart> parts) = 0;
  virtual void do_broadcast(const Signature& call, std::span<const BroadcastPart> parts) = 0;
  virtual void do_ring_exchange(const Signature& call, std::span<const ExchangePart> parts) = 0;
  virtual void do_all_to_all(const Signature& call, std::span<const AllToAllPart> parts) = 0;
  virtual void do_barrier(const Signature& call) = 0;
  virtual std::unique_ptr<ProcessGroup> do_split(const Signature& call, int color, Identity identity) = 0;
  /// `device` has a PeerAccess. Unless overridden, bytes go through host memory and this group.
  virtual std::unique_ptr<ProcessGroup> do_for_device(const Signature& call, Device& device);

  void gather(std::span<const GatherPart> parts, std::string_view label, bool async);
  Signature begin(CollectiveKind kind, std::string_view label);
  [[noreturn]] void refuse(const Signature& call, std::size_t part, const std::string& problem) const;
  std::int64_t check_offsets(const Signature& call, std::size_t part, std::span<const std::int64_t> offsets) const;
  void check_buffer(const Signature& call, std::size_t part, const std::byte* data, std::int64_t bytes,
                    std::size_t alignment = 1) const;
  void check_own_place(const Signature& call, std::size_t part, const std::byte* own, std::int64_t own_bytes,
                       const std::byte* own_place, const std::byte* full, std::int64_t full_bytes) const;
  void check_reducible(const Signature& call, std::size_t part, DType dtype) const;
  void complete(const Signature& call, const TrafficCount& counted);

  std::string name_;
  std::vector<int> world_ranks_;
  int rank_;
  int local_rank_;
  bool moves_data_;
  std::uint64_t issued_ = 0;  ///< calls that passed their checks
  Traffic traffic_;
};

}  // namespace fp8lab

#include "comm/processes/group.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "comm/processes/world.h"
#include "comm/reduce.h"
#include "comm/slices.h"
#include "core/check.h"

namespace fp8lab::processes {
namespace {

/// Number of tests of messages between checks of the clock and of shutdown messages.
constexpr int kTestsPerCheck = 64;
constexpr std::size_t kLineBytes = 64;

/// Bytes to send up to which each rank reduces everything itself: two exchanges less for some more bytes.
constexpr std::int64_t kReducedByAllBytes = 256 << 10;

/// A collective has two exchanges. First every rank sends its call to every other rank, and the calls are compared.
/// Then the bytes are sent point to point, to ranks that have begun to receive them.
class Group final : public ProcessGroup {
 public:
  Group(World& world, std::uint64_t context, Identity identity)
      : ProcessGroup(std::move(identity)),
        world_(world),
        transport_(world.transport()),
        context_(context),
        memory_(std::make_shared<Memory>()),
        sources_(static_cast<std::size_t>(size())) {
    memory_->calls.resize(static_cast<std::size_t>(size()));
    check(context <= transport_.largest_context(),
          "the messages between processes have no tags left for another group");
  }

  static Group of_world(World& world, const RunOptions& options) {
    Transport& transport = world.transport();
    Identity identity{.name = "world",
                      .world_ranks = std::vector<int>(static_cast<std::size_t>(transport.size())),
                      .rank = transport.rank(),
                      .local_rank = options.local_rank < 0 ? transport.rank() : options.local_rank,
                      .moves_data = options.moves_data};
    std::iota(identity.world_ranks.begin(), identity.world_ranks.end(), 0);
    return {world, transport.next_context++, std::move(identity)};
  }

 private:
  /// Memory that messages of this group use, in addition to the caller's buffers.
  struct Memory {
    std::vector<Call> calls;  ///< by rank
    std::vector<std::byte> staging;
  };

  void do_all_gather(const Signature& call, std::span<const GatherPart> parts, bool) override {
    const auto place = [](const GatherPart& part, int other) {
      return part.offsets_bytes[static_cast<std::size_t>(other)];
    };
    barrier(call, [&] {
      for (const GatherPart& part : parts)
        for_others([&](int other) {
          receive(part.to + place(part, other), place(part, other + 1) - place(part, other), other);
        });
    });
    if (!moves_data()) return;
    for (const GatherPart& part : parts) {
      const std::int64_t own = place(part, rank() + 1) - place(part, rank());
      for_others([&](int other) { send(part.from, own, other); });
      if (own > 0 && part.from != part.to + place(part, rank()))
        std::memcpy(part.to + place(part, rank()), part.from, static_cast<std::size_t>(own));
    }
    finish(call);
  }

  void do_reduce_scatter(const Signature& call, std::span<const ScatterPart> parts) override {
    barrier(call, [&] {
      std::size_t staged = 0;
      for (const ScatterPart& part : parts) staged += staging_bytes(own_slice(part), part.dtype);
      reserve_staging(staged);
      staged = 0;
      for (const ScatterPart& part : parts) stage(own_slice(part), part.dtype, staged);
    });
    if (!moves_data()) return;
    for (const ScatterPart& part : parts)
      for_others([&](int other) { send_slice(part.from, slice_of_rank(part, other), part.dtype, other); });
    finish(call);
    std::size_t staged = 0;
    for (const ScatterPart& part : parts)
      reduce_staged({.dtype = part.dtype}, part.from, own_slice(part), part.to, staged);
  }

  // Each rank reduces everything if that is little. Else, as in in_process, each rank reduces one slice of every tensor
  // and sends the result to all ranks.
  void do_all_reduce(const Signature& call, std::span<const ReducePart> parts) override {
    std::int64_t bytes = 0;
    for (const ReducePart& part : parts) bytes += bytes_of(part.elems, part.dtype);
    const bool by_all = bytes * (size() - 1) <= kReducedByAllBytes;
    const auto slice = [&](std::size_t part, int of_rank) {
      return by_all ? Slice{.first = 0, .elems = parts[part].elems} : slice_of(parts[part], part, of_rank, size());
    };
    barrier(call, [&] {
      std::size_t staged = 0;
      for (std::size_t i = 0; i < parts.size(); ++i) staged += staging_bytes(slice(i, rank()), parts[i].dtype);
      reserve_staging(staged);
      staged = 0;
      for (std::size_t i = 0; i < parts.size(); ++i) stage(slice(i, rank()), parts[i].dtype, staged);
    });
    if (!moves_data()) return;
    for (std::size_t i = 0; i < parts.size(); ++i)
      for_others([&](int other) { send_slice(parts[i].data, slice(i, other), parts[i].dtype, other); });
    finish(call);
    std::size_t staged = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Slice own = slice(i, rank());
      reduce_staged({.op = call.op, .dtype = parts[i].dtype}, parts[i].data, own,
                    parts[i].data + bytes_of(own.first, parts[i].dtype), staged);
    }
    if (by_all) return;
    // The results come to where this rank's summands were until they had been sent.
    exchange_calls(call, [&] {
      for (std::size_t i = 0; i < parts.size(); ++i)
        for_others([&](int other) {
          const Slice theirs = slice(i, other);
          receive(parts[i].data + bytes_of(theirs.first, parts[i].dtype), bytes_of(theirs.elems, parts[i].dtype),
                  other);
        });
    });
    for (std::size_t i = 0; i < parts.size(); ++i)
      for_others([&](int other) { send_slice(parts[i].data, slice(i, rank()), parts[i].dtype, other); });
    finish(call);
  }

  void do_broadcast(const Signature& call, std::span<const BroadcastPart> parts) override {
    barrier(call, [&] {
      for (const BroadcastPart& part : parts)
        if (rank() != call.root) receive(part.data, part.bytes, call.root);
    });
    if (!moves_data()) return;
    for (const BroadcastPart& part : parts)
      if (rank() == call.root) for_others([&](int other) { send(part.data, part.bytes, other); });
    finish(call);
  }

  void do_ring_exchange(const Signature& call, std::span<const ExchangePart> parts) override {
    const bool is_own = receiver(call) == rank();
    barrier(call, [&] {
      for (const ExchangePart& part : parts)
        if (!is_own) receive(part.to, part.bytes, sender(call));
    });
    if (!moves_data()) return;
    for (const ExchangePart& part : parts) {
      if (!is_own)
        send(part.from, part.bytes, receiver(call));
      else if (part.bytes > 0)
        std::memcpy(part.to, part.from, static_cast<std::size_t>(part.bytes));
    }
    finish(call);
  }

  void do_all_to_all(const Signature& call, std::span<const AllToAllPart> parts) override {
    barrier(call, [&] {
      for (const AllToAllPart& part : parts)
        for_others([&](int other) {
          receive(part.to + place_received(part, other, rank()), bytes_between(part, other, rank()), other);
        });
    });
    if (!moves_data()) return;
    for (const AllToAllPart& part : parts) {
      for_others([&](int other) {
        send(part.from + place_sent(part, rank(), other), bytes_between(part, rank(), other), other);
      });
      const std::int64_t own = bytes_between(part, rank(), rank());
      if (own > 0)
        std::memcpy(part.to + place_received(part, rank(), rank()), part.from + place_sent(part, rank(), rank()),
                    static_cast<std::size_t>(own));
    }
    finish(call);
  }

  void do_barrier(const Signature& call) override {
    barrier(call, [] {});
  }

  // Ranks of several groups have different next contexts. The largest of all is unused on every rank.
  std::unique_ptr<ProcessGroup> do_split(const Signature& call, int, Identity identity) override {
    barrier(call, [] {});
    std::uint64_t& next = transport_.next_context;
    for (const Call& other : memory_->calls) next = std::max(next, other.next_context);
    return std::make_unique<Group>(world_, next++, std::move(identity));
  }

  Tag call_tag() const { return {.context = context_, .data = false}; }
  Tag data_tag() const { return {.context = context_, .data = true}; }

  template <class Work>
  void for_others(const Work& work) const {
    // Each rank starts with the rank after it, so that not all ranks send to the same one at a time.
    for (int step = 1; step < size(); ++step) work((rank() + step) % size());
  }

  void receive(std::byte* to, std::int64_t bytes, int other) {
    transport_.receive(to, bytes, world_rank(other), data_tag());
  }
  void send(const std::byte* from, std::int64_t bytes, int other) {
    transport_.send(from, bytes, world_rank(other), data_tag());
  }
  void send_slice(const std::byte* full, const Slice& slice, DType dtype, int other) {
    send(full + bytes_of(slice.first, dtype), bytes_of(slice.elems, dtype), other);
  }

  static std::int64_t bytes_of(std::int64_t elems, DType dtype) {
    return elems * static_cast<std::int64_t>(size_bytes(dtype));
  }
  static Slice slice_of_rank(const ScatterPart& part, int rank) {
    const auto at = static_cast<std::size_t>(rank);
    return {.first = part.offsets_elems[at], .elems = part.offsets_elems[at + 1] - part.offsets_elems[at]};
  }
  Slice own_slice(const ScatterPart& part) const { return slice_of_rank(part, rank()); }

  // Staging holds, for each tensor in order, the other ranks' summands of this rank's slice in rank order. Each begins
  // at a cache line.
  static std::size_t line_bytes(const Slice& slice, DType dtype) {
    return (static_cast<std::size_t>(bytes_of(slice.elems, dtype)) + kLineBytes - 1) / kLineBytes * kLineBytes;
  }
  std::size_t staging_bytes(const Slice& own, DType dtype) const {
    return line_bytes(own, dtype) * static_cast<std::size_t>(size() - 1);
  }
  void reserve_staging(std::size_t bytes) {
    if (memory_->staging.size() < bytes) memory_->staging.resize(bytes);
  }
  void stage(const Slice& own, DType dtype, std::size_t& staged) {
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      receive(memory_->staging.data() + staged, bytes_of(own.elems, dtype), other);
      staged += line_bytes(own, dtype);
    }
  }
  void reduce_staged(Reduction reduction, const std::byte* own_values, const Slice& own, std::byte* to,
                     std::size_t& staged) {
    for (int other = 0; other < size(); ++other) {
      const bool is_own = other == rank();
      sources_[static_cast<std::size_t>(other)] =
          is_own ? own_values + bytes_of(own.first, reduction.dtype) : memory_->staging.data() + staged;
      if (!is_own) staged += line_bytes(own, reduction.dtype);
    }
    if (own.elems == 0) return;
    reduction.elems = own.elems;
    reduction.sources = sources_;
    reduction.targets = {&to, 1};
    reduce(reduction);
  }

  /// Sends `call` to the other ranks, receives theirs, and compares them. Before, `receive_bytes` begins to receive
  /// what the other ranks may send afterwards.
  template <class ReceiveBytes>
  void barrier(const Signature& call, const ReceiveBytes& receive_bytes) {
    exchange_calls(call, receive_bytes);
    completed_ = call;
  }

  template <class ReceiveBytes>
  void exchange_calls(const Signature& call, const ReceiveBytes& receive_bytes) {
    transport_.check_usable();
    if (world_.aborted()) throw_aborted(call, name(), world_.reason());
    if (moves_data()) receive_bytes();
    std::vector<Call>& calls = memory_->calls;
    Call& own = calls[static_cast<std::size_t>(rank())];
    own = {call, transport_.next_context};
    for_others([&](int other) {
      auto* theirs = reinterpret_cast<std::byte*>(&calls[static_cast<std::size_t>(other)]);
      transport_.receive(theirs, sizeof(Call), world_rank(other), call_tag());
      transport_.send(reinterpret_cast<const std::byte*>(&own), sizeof(Call), world_rank(other), call_tag());
    });
    await(call, Awaited::kCalls, [&](bool late) {
      if (world_.aborted()) return true;
      if (!late && !world_.anyone_left()) return false;
      const std::vector<int> missing = transport_.unfinished_ranks(Awaited::kCalls);
      for (const int absent : missing)
        if (world_.has_left(absent)) world_.abort(describe_left(absent, call, name()) + whereabouts(absent));
      if (late && !missing.empty())
        world_.abort(describe_late(missing, call, name(), world_.timeout()) + whereabouts(missing.front()));
      return world_.aborted();
    });
    for (int other = 0; other < size(); ++other) {
      if (is_valid(calls[static_cast<std::size_t>(other)], transport_.largest_context())) continue;
      world_.abort(fmt::format("rank {} sent a call that cannot be read", world_rank(other)));
      world_.abandon_messages(memory_);
      throw_aborted(call, name(), world_.reason());
    }
    for (int other = 1; other < size(); ++other) {
      const Signature& theirs = calls[static_cast<std::size_t>(other)].signature;
      if (theirs == calls.front().signature) continue;
      world_.abort(describe_mismatch(name(), world_rank(0), calls.front().signature, world_rank(other), theirs));
      world_.abandon_messages(memory_);
      throw_aborted(call, name(), world_.reason());
    }
  }

  /// Waits for the bytes. A rank that left the barrier early sends a shutdown message instead; all others do send.
  void finish(const Signature& call) {
    await(call, Awaited::kAll, [&](bool late) {
      if (!late && !world_.aborted()) return false;
      const std::vector<int> missing = transport_.unfinished_ranks(Awaited::kAll);
      if (late) world_.abort(describe_stalled(missing, call, name(), world_.timeout()));
      return late || std::all_of(missing.begin(), missing.end(), [&](int absent) { return world_.has_left(absent); });
    });
  }

  /// Polls until all messages are finished. Throws if `hopeless`, which gets whether the timeout is over, returns true.
  template <class Hopeless>
  void await(const Signature& call, Awaited awaited, const Hopeless& hopeless) {
    const auto deadline = std::chrono::steady_clock::now() + world_.timeout();
    try {
      for (int tests = 1; !transport_.finished(awaited); ++tests) {
        if (tests % kTestsPerCheck != 0) continue;
        transport_.pause();
        world_.listen();
        // Messages that a rank sent before its shutdown message arrive before it, so this test finds them finished.
        if (transport_.finished(awaited)) return;
        if (hopeless(std::chrono::steady_clock::now() >= deadline)) throw_aborted(call, name(), world_.reason());
      }
    } catch (...) {
      // The caller's memory is freed next, also if a transport has no memory for a frame.
      world_.abandon_messages(memory_);
      throw;
    }
  }

  std::string whereabouts(int absent) const {
    if (!completed_) return fmt::format("; rank {} has completed no collective of it", absent);
    return fmt::format("; the last collective that rank {} completed is {}", absent, describe(*completed_, name()));
  }

  World& world_;
  Transport& transport_;
  std::uint64_t context_;
  std::shared_ptr<Memory> memory_;
  std::vector<const std::byte*> sources_;  ///< one per rank, filled for each reduction
  /// The last barrier completed. A rank that is missing at the next barrier has also completed it.
  std::optional<Signature> completed_;
};

}  // namespace

void run_rank(Transport& transport, const RunOptions& options, const RankFunction& rank_function) {
  transport.check_usable();
  World world(transport, options);
  std::optional<Failure> failure;
  try {
    Group group = Group::of_world(world, options);
    rank_function(group);
  } catch (...) {
    failure = current_failure();
  }
  world.conclude(failure);
}

}  // namespace fp8lab::processes

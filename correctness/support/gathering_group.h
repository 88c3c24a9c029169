#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "comm/gather_source.h"
#include "comm/process_group.h"

namespace fp8lab::support {

/// Counts of one rank's GatheringGroup and of all groups split from it. Outlives their sources.
struct GatheringAccount {
  /// Called before a segment is reserved, with the number of earlier ones; false: this rank has no memory.
  std::function<bool(int)> has_memory = [](int) { return true; };
  int segments_seen = 0;
  int segments = 0;  ///< segments that are not returned yet
  int given_up = 0;  ///< requests that ended because another rank failed
  /// Counts of gathers' parts: those whose ranks have equally many bytes, by the place of both buffers; and all others.
  int inside = 0;
  int outside = 0;
  int uneven = 0;
  int uneven_inside = 0;
};

/// Ranks on the host whose gather_source() has segments that all ranks reserve together, as when NCCL gathers in
/// symmetric windows. A gather whose buffers lie at different places on two ranks breaks the lock-step rule.
class GatheringGroup final : public ProcessGroup {
 public:
  GatheringGroup(ProcessGroup& host, GatheringAccount& account, std::unique_ptr<ProcessGroup> owned = nullptr)
      : ProcessGroup(identity_of(host)),
        owned_(std::move(owned)),
        windows_(std::make_shared<Windows>(&host, account)) {}
  ~GatheringGroup() override { windows_->host = nullptr; }

  std::unique_ptr<SegmentSource> gather_source() override { return std::make_unique<Source>(windows_); }

  /// The segment and the offset in it as one number; 0 outside of all segments.
  std::uint64_t place_of(const std::byte* at) const {
    const auto after = windows_->by_address.upper_bound(at);
    if (after == windows_->by_address.begin()) return 0;
    const auto& [first, window] = *std::prev(after);
    return at - first < window.first ? (window.second << 40) + static_cast<std::uint64_t>(at - first) : 0;
  }

 private:
  struct Windows {
    Windows(ProcessGroup* host_ranks, GatheringAccount& seen) : host(host_ranks), account(seen) {}
    ProcessGroup* host;
    GatheringAccount& account;
    std::map<const std::byte*, std::pair<std::ptrdiff_t, std::uint64_t>>
        by_address;  ///< each segment's bytes and number
    std::uint64_t shared = 0;
  };

  class Source final : public GatherSource {
   public:
    explicit Source(std::shared_ptr<Windows> windows) : windows_(std::move(windows)) {}
    void release(std::byte* segment, std::size_t) noexcept override {
      windows_->by_address.erase(segment);
      --windows_->account.segments;
      ::operator delete(segment, kAlignment);
    }

   private:
    static constexpr std::align_val_t kAlignment{512};
    ProcessGroup* host() override { return windows_->host; }
    std::byte* take(std::size_t bytes) override {
      GatheringAccount& account = windows_->account;
      if (!account.has_memory(account.segments_seen++)) return nullptr;
      ++account.segments;
      return static_cast<std::byte*>(::operator new(bytes, kAlignment));
    }
    void share(std::byte* segment, std::size_t bytes) override {
      windows_->by_address[segment] = {static_cast<std::ptrdiff_t>(bytes), ++windows_->shared};
    }
    void give_up() noexcept override { ++windows_->account.given_up; }
    std::shared_ptr<Windows> windows_;
  };

  void do_all_gather(const Signature& call, std::span<const GatherPart> parts, bool) override {
    Signature placed = call;
    GatheringAccount& account = windows_->account;
    for (const GatherPart& part : parts) {
      const std::uint64_t from = place_of(part.from), to = place_of(part.to);
      bool even = true;
      for (std::size_t i = 1; i < part.offsets_bytes.size(); ++i)
        even = even && part.offsets_bytes[i] - part.offsets_bytes[i - 1] == part.offsets_bytes[1];
      if (!even) {
        ++account.uneven;
        account.uneven_inside += from != 0 || to != 0 ? 1 : 0;
        continue;
      }
      ++(from != 0 && to != 0 ? account.inside : account.outside);
      const bool in_place = part.from == part.to + part.offsets_bytes[static_cast<std::size_t>(rank())];
      placed.mix(in_place ? 1 : from);
      placed.mix(to);
    }
    do_over(*windows_->host, placed, parts);
  }
  void do_reduce_scatter(const Signature& call, std::span<const ScatterPart> parts) override {
    do_over(*windows_->host, call, parts);
  }
  void do_all_reduce(const Signature& call, std::span<const ReducePart> parts) override {
    do_over(*windows_->host, call, parts);
  }
  void do_broadcast(const Signature& call, std::span<const BroadcastPart> parts) override {
    do_over(*windows_->host, call, parts);
  }
  void do_ring_exchange(const Signature& call, std::span<const ExchangePart> parts) override {
    do_over(*windows_->host, call, parts);
  }
  void do_all_to_all(const Signature& call, std::span<const AllToAllPart> parts) override {
    do_over(*windows_->host, call, parts);
  }
  void do_barrier(const Signature& call) override { barrier_over(*windows_->host, call); }
  std::unique_ptr<ProcessGroup> do_split(const Signature& call, int color, Identity identity) override {
    std::unique_ptr<ProcessGroup> group = split_over(*windows_->host, call, color, std::move(identity));
    ProcessGroup& host = *group;
    return std::make_unique<GatheringGroup>(host, windows_->account, std::move(group));
  }

  std::unique_ptr<ProcessGroup> owned_;
  std::shared_ptr<Windows> windows_;
};

}  // namespace fp8lab::support

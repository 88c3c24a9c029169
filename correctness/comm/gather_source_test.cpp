// Memory that ranks reserve together to gather in: the same places on all ranks, or OutOfMemory on all of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "memory/memory.h"
#include "support/gathering_group.h"

namespace fp8lab::comm_test {
namespace {

using support::GatheringAccount;
using support::GatheringGroup;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class HostMemory final : public SegmentSource {
 public:
  std::byte* reserve(std::size_t bytes) override { return static_cast<std::byte*>(::operator new(bytes, kAlignment)); }
  void release(std::byte* segment, std::size_t) noexcept override { ::operator delete(segment, kAlignment); }

 private:
  static constexpr std::align_val_t kAlignment{512};
};

/// One rank: its memory, and the group it gathers with.
struct Rank {
  explicit Rank(ProcessGroup& world, std::size_t capacity_bytes = 0)
      : memory(std::make_unique<HostMemory>(), {.capacity_bytes = capacity_bytes}),
        group(std::make_unique<GatheringGroup>(world, account)),
        shared(memory.ledger().holder(HolderKind::kUnsharded, "w", "weight")),
        own(memory.ledger().holder(HolderKind::kWorkspace, "w", "own")) {
    memory.place(shared, Pool::kGathered);
    memory.gather_from(group->gather_source());
  }
  GatheringAccount account;
  Memory memory;
  std::unique_ptr<GatheringGroup> group;
  HolderId shared;
  HolderId own;
};

// Ranks differ in their other allocations and in the addresses of their segments.
TEST(GatherSource, BlocksLieAtTheSamePlacesOnEveryRank) {
  for (const int ranks : rank_counts()) {
    on_ranks(ranks, [&](ProcessGroup& world) {
      Rank rank(world);
      std::mt19937_64 together(5), apart(static_cast<std::uint64_t>(world.rank()));
      std::vector<BufferRef> shared, own;
      for (int i = 0; i < 400; ++i) {
        if (apart() % 2 == 0)
          own.push_back(rank.memory.allocate(static_cast<std::int64_t>(apart() % 4096) * 1024, rank.own));
        if (shared.empty() || together() % 5 < 3) {
          const auto bytes = static_cast<std::int64_t>(together() % (together() % 4 == 0 ? 12 * kMiB : 8192));
          shared.push_back(rank.memory.allocate(bytes, rank.shared));
        } else {
          shared.erase(shared.begin() + static_cast<std::ptrdiff_t>(together() % shared.size()));
        }
        if (own.size() > 8) own.erase(own.begin());
      }
      std::vector<std::uint64_t> places(shared.size());
      for (std::size_t i = 0; i < shared.size(); ++i) {
        places[i] = rank.group->place_of(shared[i].data());
        EXPECT_NE(places[i], 0u);
      }
      for (const BufferRef& block : own) EXPECT_EQ(rank.group->place_of(block.data()), 0u);
      std::vector<std::uint64_t> of_first = places;
      const BroadcastPart part{.data = reinterpret_cast<std::byte*>(of_first.data()),
                               .bytes = static_cast<std::int64_t>(of_first.size() * sizeof(std::uint64_t))};
      world.broadcast(0, {&part, 1}, "places");
      EXPECT_EQ(places, of_first) << "rank " << world.rank();
    });
  }
}

TEST(GatherSource, OneRankWithoutMemoryRefusesAll) {
  for (const int ranks : rank_counts()) {
    on_ranks(ranks, [&](ProcessGroup& world) {
      Rank rank(world);
      const bool poor = world.rank() == world.size() - 1;
      rank.account.has_memory = [&](int before) { return !poor || before == 0; };
      std::optional<BufferRef> first = rank.memory.allocate(30 * kMiB, rank.shared);
      const auto error = error_of([&] { rank.memory.allocate(40 * kMiB, rank.shared); });
      EXPECT_NE(error.find("out of device memory, here or on a rank that gathers with this one"), std::string::npos)
          << "rank " << world.rank() << ": " << error;
      EXPECT_EQ(rank.account.segments, 1) << "who had memory gives it back";
      EXPECT_EQ(rank.memory.allocator().reserved_bytes(), 30 * kMiB);
      // Before all are refused, every rank returns its free segments.
      first.reset();
      rank.account.has_memory = [&](int) { return !poor || rank.account.segments == 0; };
      const BufferRef second = rank.memory.allocate(40 * kMiB, rank.shared);
      EXPECT_NE(rank.group->place_of(second.data()), 0u);
      EXPECT_EQ(rank.memory.allocator().reserved_bytes(), 40 * kMiB);
      world.barrier("still in step");
    });
  }
}

// One rank's own blocks use up its capacity.
TEST(GatherSource, OneRankAtItsCapacityRefusesAll) {
  for (const int ranks : rank_counts()) {
    on_ranks(ranks, [&](ProcessGroup& world) {
      Rank rank(world, 100 * kMiB);
      std::optional<BufferRef> own;
      if (world.rank() == 0) own = rank.memory.allocate(80 * kMiB, rank.own);
      EXPECT_FALSE(error_of([&] { rank.memory.allocate(40 * kMiB, rank.shared); }).empty()) << "rank " << world.rank();
      EXPECT_EQ(rank.account.segments, 0);
      own.reset();
      EXPECT_NE(rank.group->place_of(rank.memory.allocate(40 * kMiB, rank.shared).data()), 0u);
    });
  }
}

// An allocation of a single rank must not free segments that the other ranks keep.
TEST(GatherSource, SegmentsStayWhenOneRankNeedsMemoryOfItsOwn) {
  on_ranks(rank_counts().back(), [&](ProcessGroup& world) {
    Rank rank(world, 100 * kMiB);
    rank.memory.allocate(40 * kMiB, rank.shared);
    if (world.rank() == 0) {
      EXPECT_FALSE(error_of([&] { rank.memory.allocate(80 * kMiB, rank.own); }).empty());
    }
    EXPECT_NE(rank.group->place_of(rank.memory.allocate(40 * kMiB, rank.shared).data()), 0u);
    EXPECT_EQ(rank.account.segments_seen, 1);
  });
}

// A reservation begun with a rank that has failed would never end and never be freed.
TEST(GatherSource, ReservationEndsWhenARankFails) {
  const std::string error = error_of([&] {
    on_ranks(rank_counts().back(), [&](ProcessGroup& world) {
      Rank rank(world);
      if (world.rank() == 0) fail("the first rank has had enough");
      EXPECT_THROW(rank.memory.allocate(30 * kMiB, rank.shared), Error);
      EXPECT_EQ(rank.account.given_up, 1);
      EXPECT_EQ(rank.account.segments, 0);
    });
  });
  EXPECT_NE(error.find("had enough"), std::string::npos) << error;
}

TEST(GatherSource, RequestsOfDifferentSizesAreReported) {
  const std::string error = error_of([&] {
    on_ranks(rank_counts().back(), [&](ProcessGroup& world) {
      Rank rank(world);
      rank.memory.allocate(world.rank() == 1 ? 40 * kMiB : 30 * kMiB, rank.shared);
    });
  });
  EXPECT_NE(error.find("bytes to gather in"), std::string::npos) << error;
}

TEST(GatherSource, GathersAtDifferentPlacesAreReported) {
  const std::string error = error_of([&] {
    on_ranks(rank_counts().back(), [&](ProcessGroup& world) {
      Rank rank(world);
      const BufferRef full = rank.memory.allocate(1024 * world.size(), rank.shared);
      const BufferRef shard = rank.memory.allocate(1024, world.rank() == 1 ? rank.own : rank.shared);
      std::vector<std::int64_t> offsets;
      for (int other = 0; other <= world.size(); ++other) offsets.push_back(1024 * other);
      const GatherPart part{.from = shard.data(), .to = full.data(), .offsets_bytes = offsets};
      rank.group->all_gather({&part, 1}, "g");
    });
  });
  EXPECT_NE(error.find("places in memory of gather_source()"), std::string::npos) << error;
}

TEST(GatherSource, SegmentsOutliveTheGroup) {
  for (const int ranks : rank_counts()) {
    on_ranks(ranks, [&](ProcessGroup& world) {
      Rank rank(world);
      std::optional<BufferRef> kept = rank.memory.allocate(5 * kMiB, rank.shared);
      rank.memory.allocate(30 * kMiB, rank.shared);
      EXPECT_EQ(rank.account.segments, 2);
      rank.memory.gather_from(nullptr);
      EXPECT_EQ(rank.account.segments, 1) << "what nobody uses goes with the source";
      rank.group.reset();
      std::fill_n(kept->data(), kept->bytes(), std::byte{1});
      // The new block lies elsewhere and overlaps nothing.
      const BufferRef later = rank.memory.allocate(5 * kMiB, rank.shared);
      EXPECT_EQ(rank.account.segments, 1);
      EXPECT_EQ(std::count(kept->data(), kept->data() + kept->bytes(), std::byte{1}), kept->bytes());
      kept.reset();
      EXPECT_EQ(rank.account.segments, 0);
    });
  }
}

}  // namespace
}  // namespace fp8lab::comm_test

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "comm/ranks.h"

// Collectives that move bytes unchanged, all_gather, broadcast, ring_exchange and all_to_all, and the barrier.
namespace fp8lab::comm_test {
namespace {

using reference::same_bytes;

class Movement : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Movement, testing::ValuesIn(rank_counts()), testing::PrintToStringParamName());

std::vector<std::byte> gathered_bytes(std::uint64_t seed, const std::vector<std::int64_t>& offsets) {
  std::vector<std::byte> all(static_cast<std::size_t>(offsets.back()));
  for (std::size_t rank = 0; rank + 1 < offsets.size(); ++rank) {
    const std::vector<std::byte> own = test_bytes(seed, static_cast<int>(rank), offsets[rank + 1] - offsets[rank]);
    std::copy(own.begin(), own.end(), all.begin() + offsets[rank]);
  }
  return all;
}

TEST_P(Movement, GathersEveryRanksBytesInRankOrder) {
  for (const Sharing& sharing : kSharings) {
    const std::vector<std::int64_t> offsets = sharing.offsets(GetParam());
    const std::vector<std::byte> expected = gathered_bytes(1, offsets);
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      const std::vector<std::byte> own = test_bytes(1, group.rank(), offsets[rank + 1] - offsets[rank]);
      Guarded<std::byte> to(offsets.back());
      const GatherPart part{.from = own.data(), .to = to.bytes(), .offsets_bytes = offsets};
      group.all_gather({&part, 1}, "w");
      EXPECT_TRUE(same_bytes(to.elements(), expected)) << sharing.name << " on rank " << rank;
      EXPECT_TRUE(to.guards_intact()) << sharing.name << " on rank " << rank;
    });
  }
}

TEST_P(Movement, GathersInPlace) {
  for (const Sharing& sharing : kSharings) {
    const std::vector<std::int64_t> offsets = sharing.offsets(GetParam());
    const std::vector<std::byte> expected = gathered_bytes(2, offsets);
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      Guarded<std::byte> to(offsets.back());
      const std::vector<std::byte> own = test_bytes(2, group.rank(), offsets[rank + 1] - offsets[rank]);
      std::copy(own.begin(), own.end(), to.elements().begin() + offsets[rank]);
      const GatherPart part{.from = to.bytes_from(offsets[rank]), .to = to.bytes(), .offsets_bytes = offsets};
      group.all_gather({&part, 1}, "w");
      EXPECT_TRUE(same_bytes(to.elements(), expected)) << sharing.name << " on rank " << rank;
      EXPECT_TRUE(to.guards_intact()) << sharing.name << " on rank " << rank;
    });
  }
}

TEST_P(Movement, GathersManyTensorsInOneCollective) {
  constexpr std::size_t kParts = std::size(kSharings);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    std::array<std::vector<std::int64_t>, kParts> offsets;
    std::array<std::vector<std::byte>, kParts> own;
    std::array<std::vector<std::byte>, kParts> to;
    std::array<GatherPart, kParts> parts;
    for (std::size_t i = 0; i < kParts; ++i) {
      offsets[i] = kSharings[i].offsets(group.size());
      own[i] = test_bytes(10 + i, group.rank(), offsets[i][rank + 1] - offsets[i][rank]);
      to[i].resize(static_cast<std::size_t>(offsets[i].back()));
      parts[i] = {.from = own[i].data(), .to = to[i].data(), .offsets_bytes = offsets[i]};
    }
    group.all_gather(parts, "layer");
    for (std::size_t i = 0; i < kParts; ++i)
      EXPECT_TRUE(same_bytes(to[i], gathered_bytes(10 + i, offsets[i]))) << kSharings[i].name << " on rank " << rank;
    EXPECT_EQ(group.traffic().of(CollectiveKind::kAllGather).collectives, 1);
  });
}

TEST_P(Movement, BuffersMayBeOverwrittenAfterTheCall) {
  constexpr std::int64_t kBytes = 4096;
  const std::vector<std::int64_t> offsets = Sharing{"", [](int, int) { return kBytes; }}.offsets(GetParam());
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    std::vector<std::byte> own(kBytes);
    std::vector<std::byte> to(static_cast<std::size_t>(offsets.back()));
    for (std::uint64_t round = 0; round < 50; ++round) {
      own = test_bytes(round, group.rank(), kBytes);
      const GatherPart part{.from = own.data(), .to = to.data(), .offsets_bytes = offsets};
      group.all_gather({&part, 1}, "w");
      std::fill(own.begin(), own.end(), std::byte{0});  // a rank still reading would see it
      ASSERT_TRUE(same_bytes(to, gathered_bytes(round, offsets))) << "round " << round << " on rank " << group.rank();
    }
  });
}

TEST_P(Movement, BroadcastsFromEveryRoot) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      const std::vector<std::byte> expected = test_bytes(3, root, 5000);
      Guarded<std::byte> large(5000);
      Guarded<std::byte> empty(0);
      const std::vector<std::byte> own = test_bytes(3, group.rank(), 5000);
      std::copy(own.begin(), own.end(), large.elements().begin());
      const std::array<BroadcastPart, 2> parts = {BroadcastPart{.data = large.bytes(), .bytes = 5000},
                                                  BroadcastPart{.data = empty.bytes(), .bytes = 0}};
      group.broadcast(root, parts, "state");
      EXPECT_TRUE(same_bytes(large.elements(), expected)) << "root " << root << " on rank " << group.rank();
      EXPECT_TRUE(large.guards_intact() && empty.guards_intact());
    }
  });
}

TEST_P(Movement, RingExchangeReceivesTheBytesOfTheRankThatIsAsFarBefore) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    for (int shift = -group.size(); shift <= 2 * group.size(); ++shift) {
      if (shift % group.size() == 0 && group.size() > 1) continue;
      const int sender = ((group.rank() - shift) % group.size() + group.size()) % group.size();
      const std::vector<std::byte> large = test_bytes(4, group.rank(), 300'000), small = test_bytes(5, group.rank(), 4);
      Guarded<std::byte> to_large(300'000), to_small(4), to_empty(0);
      const std::array<ExchangePart, 3> parts = {
          ExchangePart{.from = large.data(), .to = to_large.bytes(), .bytes = 300'000},
          ExchangePart{.from = nullptr, .to = to_empty.bytes(), .bytes = 0},
          ExchangePart{.from = small.data(), .to = to_small.bytes(), .bytes = 4, .content = Content::kScales}};
      group.ring_exchange(shift, parts, "keys");
      EXPECT_TRUE(same_bytes(to_large.elements(), test_bytes(4, sender, 300'000)))
          << shift << " on rank " << group.rank();
      EXPECT_TRUE(same_bytes(to_small.elements(), test_bytes(5, sender, 4))) << shift << " on rank " << group.rank();
      EXPECT_TRUE(to_large.guards_intact() && to_small.guards_intact() && to_empty.guards_intact());
    }
  });
}

TEST_P(Movement, RingExchangesByOnePassEveryRanksBytesOnToAllOthers) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    std::vector<std::byte> have = test_bytes(6, group.rank(), 1000), received(1000);
    for (int step = 1; step < group.size(); ++step) {
      const ExchangePart part{.from = have.data(), .to = received.data(), .bytes = 1000};
      group.ring_exchange(1, {&part, 1}, "keys");
      std::swap(have, received);
      std::fill(received.begin(), received.end(), std::byte{0});  // a rank still reading would see it
      const int owner = (group.rank() - step + group.size()) % group.size();
      EXPECT_TRUE(same_bytes(have, test_bytes(6, owner, 1000))) << "step " << step << " on rank " << group.rank();
    }
    EXPECT_EQ(group.traffic().of(CollectiveKind::kRingExchange),
              (TrafficCount{.collectives = group.size() - 1,
                            .payload_bytes = std::int64_t{1000} * group.size() * (group.size() - 1)}));
  });
}

/// What rank s sends to rank d: different numbers, for every third pair 0, and from rank 1 nothing to anyone.
std::vector<std::int64_t> uneven_sizes(int ranks, std::int64_t unit) {
  std::vector<std::int64_t> sizes;
  for (int s = 0; s < ranks; ++s)
    for (int d = 0; d < ranks; ++d) sizes.push_back(s == 1 || (s + 2 * d) % 3 == 2 ? 0 : unit * (1 + s + 3 * d));
  return sizes;
}

TEST_P(Movement, AllToAllSendsEachRankItsOwnBytes) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const int ranks = group.size(), rank = group.rank();
    const auto size_at = [&](const std::vector<std::int64_t>& sizes, int s, int d) {
      return sizes[static_cast<std::size_t>(s * ranks + d)];
    };
    const auto sent = [&](const std::vector<std::int64_t>& sizes, int s, int d) {
      return test_bytes(static_cast<std::uint64_t>(40 + d), s, size_at(sizes, s, d));
    };
    std::int64_t all_bytes = 0;
    std::array<std::vector<std::int64_t>, 2> sizes{uneven_sizes(ranks, 3), uneven_sizes(ranks, 20'001)};
    std::array<std::vector<std::byte>, 2> from, expected;
    std::vector<Guarded<std::byte>> to;
    std::array<AllToAllPart, 2> parts;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (int other = 0; other < ranks; ++other) {
        const std::vector<std::byte> mine = sent(sizes[i], rank, other), theirs = sent(sizes[i], other, rank);
        from[i].insert(from[i].end(), mine.begin(), mine.end());
        expected[i].insert(expected[i].end(), theirs.begin(), theirs.end());
      }
      for (const std::int64_t bytes : sizes[i]) all_bytes += bytes;
      to.emplace_back(std::ssize(expected[i]));
    }
    for (std::size_t i = 0; i < parts.size(); ++i)
      parts[i] = {.from = from[i].empty() ? nullptr : from[i].data(), .to = to[i].bytes(), .bytes = sizes[i]};
    group.all_to_all(parts, "tokens");
    for (std::size_t i = 0; i < parts.size(); ++i) {
      EXPECT_TRUE(same_bytes(to[i].elements(), expected[i])) << "part " << i << " on rank " << rank;
      EXPECT_TRUE(to[i].guards_intact()) << "part " << i << " on rank " << rank;
    }
    EXPECT_EQ(group.traffic().of(CollectiveKind::kAllToAll),
              (TrafficCount{.collectives = 1, .payload_bytes = all_bytes}));
  });
}

TEST_P(Movement, NoRankLeavesABarrierBeforeAllHaveArrived) {
  if (launched_ranks() > 0) GTEST_SKIP() << "processes share no counter";
  std::atomic<int> come{0};
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    for (int round = 1; round <= 200; ++round) {
      ++come;
      group.barrier("round");
      EXPECT_GE(come, round * group.size());
      EXPECT_LE(come, (round + 1) * group.size() - 1);
    }
  });
}

// On `meta` addresses have no memory behind them, so that reading or writing them would crash.
TEST_P(Movement, GroupThatMovesNoDataTouchesNoBuffer) {
  const std::vector<std::int64_t> offsets = kSharings[0].offsets(GetParam());
  auto* const nowhere = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
  RunOptions options = run_options(GetParam());
  options.moves_data = false;
  run_ranks(row(), options, [&](ProcessGroup& group) {
    EXPECT_FALSE(group.moves_data());
    const GatherPart gather{.from = nowhere, .to = nowhere + 1'000'000, .offsets_bytes = offsets};
    const ScatterPart scatter{.from = nowhere, .to = nowhere + 1'000'000, .offsets_elems = offsets};
    const ReducePart reduced{.data = nowhere, .elems = 1'000'000};
    const BroadcastPart sent{.data = nowhere, .bytes = 1'000'000};
    group.all_gather({&gather, 1}, "w");
    group.reduce_scatter({&scatter, 1}, "g");
    group.all_reduce(ReduceOp::kMax, {&reduced, 1}, "amax");
    group.broadcast(0, {&sent, 1}, "state");
    const ExchangePart exchanged{.from = nowhere, .to = nowhere + 1'000'000, .bytes = 1'000'000};
    group.ring_exchange(1, {&exchanged, 1}, "keys");
    const std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size() * group.size()), 1000);
    const AllToAllPart tokens{.from = nowhere, .to = nowhere + 1'000'000, .bytes = sizes};
    group.all_to_all({&tokens, 1}, "tokens");
    group.barrier("end");
    EXPECT_EQ(group.traffic().of(CollectiveKind::kAllGather),
              (TrafficCount{.collectives = 1, .payload_bytes = 1024 * GetParam()}));
  });
}

}  // namespace
}  // namespace fp8lab::comm_test

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "comm/ranks.h"

// What every process group counts and refuses, however it moves its bytes.
namespace fp8lab::comm_test {
namespace {

// Four simulated ranks: figures are literal, and a single rank can break a rule.
std::string refusal(const RankFunction& rank_function) {
  return error_of([&] { run_ranks("simulated", {.ranks = 4, .simulated_rank = 1}, rank_function); });
}

struct CountedBuffers {
  alignas(8) std::array<std::byte, 4096> memory{};
  std::vector<std::int64_t> offsets = {0, 10, 10, 40, 100};

  GatherPart gather() { return {.from = &memory[2048], .to = memory.data(), .offsets_bytes = offsets}; }
  ScatterPart scatter() { return {.from = memory.data(), .to = &memory[2048], .offsets_elems = offsets}; }
};

TEST(Traffic, CountsBytesOfTheFullArrayByCollectiveAndContent) {
  EXPECT_EQ(
      refusal([](ProcessGroup& group) {
        CountedBuffers buffers;
        GatherPart scales = buffers.gather();
        scales.content = Content::kScales;
        const std::array<GatherPart, 3> gathers = {buffers.gather(), scales, buffers.gather()};
        group.all_gather(gathers, "w");
        group.all_gather({&scales, 1}, "s");
        ScatterPart narrow = buffers.scatter();
        narrow.dtype = DType::kBF16;
        const std::array<ScatterPart, 2> scatters = {buffers.scatter(), narrow};
        group.reduce_scatter(scatters, "g");
        const ReducePart amax{
            .data = buffers.memory.data(), .elems = 3, .dtype = DType::kI64, .content = Content::kScales};
        group.all_reduce(ReduceOp::kMax, {&amax, 1}, "amax");
        const BroadcastPart sent{.data = buffers.memory.data(), .bytes = 11};
        group.broadcast(3, {&sent, 1}, "b");
        const std::array<ExchangePart, 2> exchanged = {
            ExchangePart{.from = buffers.memory.data(), .to = &buffers.memory[2048], .bytes = 7},
            ExchangePart{
                .from = &buffers.memory[7], .to = &buffers.memory[2055], .bytes = 4, .content = Content::kScales}};
        group.ring_exchange(-1, exchanged, "kv");
        std::vector<std::int64_t> sizes(16, 0);
        sizes[1] = 9;   // rank 0 to rank 1
        sizes[14] = 2;  // rank 3 to rank 2
        const AllToAllPart tokens{.from = buffers.memory.data(), .to = &buffers.memory[2048], .bytes = sizes};
        group.all_to_all({&tokens, 1}, "tokens");
        group.barrier("x");
        group.all_gather({}, "nothing");

        const Traffic& traffic = group.traffic();
        EXPECT_EQ(traffic.of(CollectiveKind::kAllGather),
                  (TrafficCount{.collectives = 3, .payload_bytes = 200, .scale_bytes = 200}));
        EXPECT_EQ(traffic.of(CollectiveKind::kReduceScatter), (TrafficCount{.collectives = 1, .payload_bytes = 600}));
        EXPECT_EQ(traffic.of(CollectiveKind::kAllReduce), (TrafficCount{.collectives = 1, .scale_bytes = 24}));
        EXPECT_EQ(traffic.of(CollectiveKind::kBroadcast), (TrafficCount{.collectives = 1, .payload_bytes = 11}));
        EXPECT_EQ(traffic.of(CollectiveKind::kRingExchange),
                  (TrafficCount{.collectives = 1, .payload_bytes = 4 * 7, .scale_bytes = 4 * 4}));
        EXPECT_EQ(traffic.of(CollectiveKind::kAllToAll), (TrafficCount{.collectives = 1, .payload_bytes = 11}));
        EXPECT_EQ(traffic.of(CollectiveKind::kBarrier), (TrafficCount{.collectives = 1}));
        group.reset_traffic();
        for (std::size_t kind = 0; kind < kCollectiveKinds; ++kind)
          EXPECT_EQ(traffic.of(static_cast<CollectiveKind>(kind)), TrafficCount{});
      }),
      "");
}

TEST(Traffic, IsTheSameOnEveryRank) {
  const int ranks = launched_ranks() > 0 ? launched_ranks() : 4;
  const std::vector<std::int64_t> offsets = kSharings[1].offsets(ranks);
  on_ranks(ranks, [&](ProcessGroup& group) {
    std::vector<std::byte> own(10'000);
    std::vector<std::byte> to(static_cast<std::size_t>(offsets.back()));
    const GatherPart part{.from = own.data(), .to = to.data(), .offsets_bytes = offsets, .content = Content::kScales};
    for (int i = 0; i < 3; ++i) group.all_gather({&part, 1}, "s");
    EXPECT_EQ(group.traffic().of(CollectiveKind::kAllGather),
              (TrafficCount{.collectives = 3, .scale_bytes = 3 * offsets.back()}));
  });
}

TEST(Arguments, OffsetsThatAreTooFewOrDoNotStartAtZeroOrDecreaseAreRefused) {
  const auto gather = [](std::vector<std::int64_t> offsets) {
    return refusal([&](ProcessGroup& group) {
      CountedBuffers buffers;
      buffers.offsets = offsets;
      const GatherPart part = buffers.gather();
      group.all_gather({&part, 1}, "w");
    });
  };
  EXPECT_EQ(gather({0, 1, 2}), "rank 1: all_gather 'w' of group 'world': part 0 has 3 offsets; 4 ranks need 5");
  EXPECT_EQ(gather({1, 1, 2, 3, 4}),
            "rank 1: all_gather 'w' of group 'world': part 0 starts at offset 1; the first is 0");
  EXPECT_EQ(gather({0, 5, 4, 6, 7}),
            "rank 1: all_gather 'w' of group 'world': part 0 has offset 4 after 5; offsets never decrease");
  EXPECT_EQ(gather({0, 0, 0, 0, 0}), "");
}

TEST(Arguments, NullOrMisalignedBuffersAreRefused) {
  EXPECT_EQ(refusal([](ProcessGroup& group) {
              CountedBuffers buffers;
              GatherPart part = buffers.gather();
              part.from = nullptr;  // rank 1 has nothing to send
              group.all_gather({&part, 1}, "w");
              part.to = nullptr;
              group.all_gather({&part, 1}, "w");
            }),
            "rank 1: all_gather 'w' of group 'world': part 0 has 100 bytes at a null address");
  EXPECT_EQ(refusal([](ProcessGroup& group) {
              CountedBuffers buffers;
              ScatterPart part = buffers.scatter();
              part.from += 2;
              group.reduce_scatter({&part, 1}, "g");
            }),
            "rank 1: reduce_scatter 'g' of group 'world': part 0 lies at an address that is no multiple of its "
            "elements' 4 bytes");
  EXPECT_EQ(refusal([](ProcessGroup& group) {
              const ReducePart part{.elems = -1};
              group.all_reduce(ReduceOp::kSum, {&part, 1}, "x");
            }),
            "rank 1: all_reduce 'x' of group 'world': part 0 has -1 elements; a size is at least 0");
}

TEST(Arguments, OwnBytesInsideTheFullArrayButNotInTheirPlaceAreRefused) {
  const auto gather_from = [](std::size_t at) {
    return refusal([&](ProcessGroup& group) {
      CountedBuffers buffers;
      buffers.offsets = {0, 10, 30, 40, 100};  // rank 1's place is [10, 30)
      GatherPart part = buffers.gather();
      part.from = &buffers.memory[at];
      group.all_gather({&part, 1}, "w");
    });
  };
  EXPECT_EQ(gather_from(10), "");
  EXPECT_EQ(gather_from(100), "");
  EXPECT_EQ(
      gather_from(11),
      "rank 1: all_gather 'w' of group 'world': part 0 has its rank's bytes inside the full array, but not in their "
      "own place");
  EXPECT_NE(gather_from(99), "");
  EXPECT_EQ(
      refusal([](ProcessGroup& group) {
        CountedBuffers buffers;
        buffers.offsets = {0, 10, 30, 40, 100};
        ScatterPart part = buffers.scatter();
        part.to = &buffers.memory[44];
        group.reduce_scatter({&part, 1}, "g");
      }),
      "rank 1: reduce_scatter 'g' of group 'world': part 0 has its rank's bytes inside the full array, but not in "
      "their own place");
}

TEST(Arguments, RingExchangesThatOverlapOrGoNowhereAreRefused) {
  const auto exchange = [](int shift, std::size_t to, std::int64_t bytes) {
    return refusal([&](ProcessGroup& group) {
      CountedBuffers buffers;
      const ExchangePart part{.from = &buffers.memory[100], .to = &buffers.memory[to], .bytes = bytes};
      group.ring_exchange(shift, {&part, 1}, "kv");
    });
  };
  EXPECT_EQ(exchange(1, 150, 50), "");
  EXPECT_EQ(exchange(-3, 50, 50), "");
  EXPECT_EQ(exchange(1, 149, 50),
            "rank 1: ring_exchange 'kv' of group 'world': part 0 is received in the memory from which it is "
            "sent; the two must not overlap");
  EXPECT_NE(exchange(1, 100, 50), "");
  EXPECT_EQ(exchange(8, 200, 50),
            "rank 1: ring_exchange 'kv' of group 'world': by 8 each of its 4 ranks would send to itself");
  EXPECT_EQ(exchange(1, 200, -1),
            "rank 1: ring_exchange 'kv' of group 'world': part 0 has -1 bytes; a size is at least 0");
}

TEST(Arguments, AllToAllsThatOverlapOrLackSizesAreRefused) {
  const auto exchange = [](std::size_t to, std::int64_t bytes, std::size_t sizes) {
    return refusal([&](ProcessGroup& group) {
      CountedBuffers buffers;
      const std::vector<std::int64_t> of_pairs(sizes, bytes);
      const AllToAllPart part{.from = &buffers.memory[100], .to = &buffers.memory[to], .bytes = of_pairs};
      group.all_to_all({&part, 1}, "tokens");
    });
  };
  EXPECT_EQ(exchange(140, 10, 16), "");
  EXPECT_EQ(exchange(139, 10, 16),
            "rank 1: all_to_all 'tokens' of group 'world': part 0 is received in the memory from which it is "
            "sent; the two must not overlap");
  EXPECT_EQ(exchange(200, 10, 4),
            "rank 1: all_to_all 'tokens' of group 'world': part 0 has 4 sizes; 4 ranks need 16 of them, one for each "
            "sender and receiver");
  EXPECT_EQ(exchange(200, -1, 16),
            "rank 1: all_to_all 'tokens' of group 'world': part 0 has -1 bytes; a size is at least 0");
}

TEST(Arguments, UnknownTypesRootsAndPlacesAreRefused) {
  EXPECT_EQ(refusal([](ProcessGroup& group) {
              CountedBuffers buffers;
              ScatterPart part = buffers.scatter();
              part.dtype = DType::kE4M3;
              group.reduce_scatter({&part, 1}, "g");
            }),
            "rank 1: reduce_scatter 'g' of group 'world': part 0 is e4m3; f32, bf16, i32 and i64 can be reduced");
  EXPECT_EQ(refusal([](ProcessGroup& group) { group.broadcast(4, {}, "b"); }),
            "rank 1: broadcast 'b' of group 'world': root 4 is none of its 4 ranks");
  EXPECT_EQ(refusal([](ProcessGroup& group) { group.split(std::vector<SplitPlace>(3), "shard"); }),
            "rank 1: split 'shard' of group 'world': 3 places for 4 ranks; each rank needs one");
}

TEST(Table, UnknownNamesAndImpossibleOptionsAreRefused) {
  std::string names;
  for (const ProcessGroupRow& row : process_groups()) names += std::string(row.name) + " ";
  EXPECT_EQ(names, "in_process mpi sockets nccl simulated ");
  const auto run = [](std::string_view name, const RunOptions& options) {
    return error_of([&] { run_ranks(name, options, [](ProcessGroup&) {}); });
  };
  EXPECT_EQ(
      run("in-process", {}),
      "process group 'in-process' is not known; the process groups are in_process, mpi, sockets, nccl, simulated");
  EXPECT_EQ(run("in_process", {.ranks = 0}), "a run of 0 ranks: there must be at least one");
  EXPECT_EQ(run("in_process", {.timeout = std::chrono::seconds(0)}),
            "the timeout of a run of ranks lies above 0 and within a year");
  EXPECT_NE(run("in_process", {.timeout = std::chrono::nanoseconds::max()}), "");
  EXPECT_EQ(run("simulated", {.ranks = 4, .simulated_rank = 4}), "simulated rank 4 is none of 4 ranks");
  EXPECT_TRUE(process_group_row("in_process").unavailable_reason().empty());
}

TEST(Table, UnavailableRowNamesItsReason) {
  for (const ProcessGroupRow& row : process_groups()) {
    const std::string reason = row.unavailable_reason();
    if (reason.empty()) continue;
    EXPECT_EQ(error_of([&] { run_ranks(row.name, {}, [](ProcessGroup&) {}); }),
              "process group '" + std::string(row.name) + "' is unavailable: " + reason);
  }
}

// A step of a 126-layer model over 1024 ranks with a mesh, of which this process simulates one.
TEST(Simulated, OneRankOfAThousandRunsAlone) {
  std::vector<std::int64_t> offsets(513);
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<std::int64_t>(i) << 20;
  auto* const nowhere = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
  run_ranks("simulated", {.ranks = 1024, .simulated_rank = 600}, [&](ProcessGroup& world) {
    EXPECT_FALSE(world.moves_data());
    std::vector<SplitPlace> places;
    for (int rank = 0; rank < world.size(); ++rank) places.push_back({rank / 512, rank % 512});
    const auto shard = world.split(places, "shard");
    EXPECT_EQ(shard->size(), 512);
    EXPECT_EQ(shard->rank(), 88);
    EXPECT_EQ(shard->world_rank(0), 512);
    const GatherPart part{.from = nowhere, .to = nowhere + (std::int64_t{1} << 36), .offsets_bytes = offsets};
    const std::vector<GatherPart> parts(9, part);
    for (int layer = 0; layer < 126; ++layer) shard->all_gather(parts, "layer");
    EXPECT_EQ(shard->traffic().of(CollectiveKind::kAllGather),
              (TrafficCount{.collectives = 126, .payload_bytes = (std::int64_t{126} * 9 * 512) << 20}));
  });
}

}  // namespace
}  // namespace fp8lab::comm_test

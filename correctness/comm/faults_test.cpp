#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "comm/ranks.h"

// Runs that fail. Ranks share only the group, so these tests hold for threads and processes alike.
namespace fp8lab::comm_test {
namespace {

std::vector<int> several_ranks() {
  std::vector<int> counts;
  for (const int ranks : rank_counts())
    if (ranks > 1) counts.push_back(ranks);
  return counts;
}

class Faults : public testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  int last() const { return GetParam() - 1; }

  /// The error of a run in which every rank calls `of_rank`; on each rank that call must throw an error that ends with
  /// `echo`.
  template <class Work>
  std::string run_error(const std::string& echo, const Work& of_rank) {
    return error_of([&] {
      on_ranks(ranks(), [&](ProcessGroup& group) {
        const std::string error = error_of([&] { of_rank(group); });
        EXPECT_TRUE(error.ends_with(echo)) << "rank " << group.rank() << ": " << error;
        // Later calls fail too, and at once.
        EXPECT_THROW(group.barrier("later"), GroupAborted);
      });
    });
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Faults);
INSTANTIATE_TEST_SUITE_P(Ranks, Faults, testing::ValuesIn(several_ranks()), testing::PrintToStringParamName());

struct CheckedBuffers {
  std::vector<std::int64_t> offsets;
  std::vector<float> from;
  std::vector<float> to;

  explicit CheckedBuffers(int ranks) : from(4096), to(4096) {
    for (int rank = 0; rank <= ranks; ++rank) offsets.push_back(8 * rank);
  }
  GatherPart gather() {
    return {.from = reinterpret_cast<std::byte*>(from.data()),
            .to = reinterpret_cast<std::byte*>(to.data()),
            .offsets_bytes = offsets};
  }
  ReducePart reduced(std::int64_t elems, DType dtype = DType::kF32) {
    return {.data = reinterpret_cast<std::byte*>(to.data()), .elems = elems, .dtype = dtype};
  }
  ExchangePart exchanged(std::int64_t bytes) {
    return {.from = reinterpret_cast<std::byte*>(from.data()),
            .to = reinterpret_cast<std::byte*>(to.data()),
            .bytes = bytes};
  }
  BroadcastPart sent(std::int64_t bytes) { return {.data = reinterpret_cast<std::byte*>(to.data()), .bytes = bytes}; }
};

TEST_P(Faults, DifferentCollectivesAreBothNamed) {
  const std::string expected =
      "ranks of group 'world' issue different collectives: rank 0 calls all_reduce sum 'g' "
      "(#2: 1 part, 12 bytes), rank " +
      std::to_string(last()) + " calls barrier 'x' (#2)";
  EXPECT_EQ(run_error(expected,
                      [&](ProcessGroup& group) {
                        CheckedBuffers buffers(ranks());
                        const ReducePart part = buffers.reduced(3);
                        group.barrier("start");
                        if (group.rank() == last())
                          group.barrier("x");
                        else
                          group.all_reduce(ReduceOp::kSum, {&part, 1}, "g");
                      }),
            expected);
}

/// One breach of the lock-step rule: rank 0 makes one call, the other ranks make `odd`.
struct Divergence {
  const char* name;
  void (*issue)(ProcessGroup& group, bool odd);
};

const Divergence kDivergences[] = {
    {"labels", [](ProcessGroup& group, bool odd) { group.barrier(odd ? "layers.1" : "layers.2"); }},
    {"long labels", [](ProcessGroup& group, bool odd) { group.barrier(std::string(200, 'x') + (odd ? "1" : "2")); }},
    {"operations",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       const ReducePart part = buffers.reduced(3);
       group.all_reduce(odd ? ReduceOp::kMax : ReduceOp::kSum, {&part, 1}, "g");
     }},
    {"types of one size",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       const ReducePart part = buffers.reduced(3, odd ? DType::kI32 : DType::kF32);
       group.all_reduce(ReduceOp::kSum, {&part, 1}, "g");
     }},
    {"types of what is scattered",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       const ScatterPart part{.from = reinterpret_cast<std::byte*>(buffers.from.data()),
                              .to = reinterpret_cast<std::byte*>(buffers.to.data()),
                              .offsets_elems = buffers.offsets,
                              .dtype = odd ? DType::kI32 : DType::kF32};
       group.reduce_scatter({&part, 1}, "g");
     }},
    {"shares of what is scattered",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       if (odd) buffers.offsets[1] = 7;
       const ScatterPart part{.from = reinterpret_cast<std::byte*>(buffers.from.data()),
                              .to = reinterpret_cast<std::byte*>(buffers.to.data()),
                              .offsets_elems = buffers.offsets};
       group.reduce_scatter({&part, 1}, "g");
     }},
    {"sizes",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       const BroadcastPart part = buffers.sent(odd ? 8 : 9);
       group.broadcast(0, {&part, 1}, "b");
     }},
    {"roots",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       const BroadcastPart part = buffers.sent(8);
       group.broadcast(odd ? 1 : 0, {&part, 1}, "b");
     }},
    {"shares of one total",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       if (odd) buffers.offsets[1] = 7;
       const GatherPart part = buffers.gather();
       group.all_gather({&part, 1}, "w");
     }},
    {"contents",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       GatherPart part = buffers.gather();
       part.content = odd ? Content::kScales : Content::kPayload;
       group.all_gather({&part, 1}, "w");
     }},
    {"order of parts",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       const std::array<BroadcastPart, 2> parts = {buffers.sent(odd ? 8 : 16), buffers.sent(odd ? 16 : 8)};
       group.broadcast(0, parts, "b");
     }},
    {"numbers of parts",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       const std::array<BroadcastPart, 2> parts = {buffers.sent(8), buffers.sent(0)};
       group.broadcast(0, std::span(parts).first(odd ? 1 : 2), "b");
     }},
    // Around a ring of two both shifts are the same.
    {"shifts",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       const ExchangePart part = buffers.exchanged(8);
       if (group.size() > 2) return group.ring_exchange(odd ? -1 : 1, {&part, 1}, "kv");
       group.barrier(odd ? "a ring of" : "two ranks");
     }},
    {"sizes of what is exchanged",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       const ExchangePart part = buffers.exchanged(odd ? 8 : 9);
       group.ring_exchange(1, {&part, 1}, "kv");
     }},
    // One byte more to rank 0, and one less to the last: all ranks send the same number of bytes together.
    {"sizes of what each rank gets",
     [](ProcessGroup& group, bool odd) {
       CheckedBuffers buffers(group.size());
       std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size() * group.size()), 2);
       if (odd) ++sizes.front(), --sizes.back();
       const AllToAllPart part{.from = reinterpret_cast<std::byte*>(buffers.from.data()),
                               .to = reinterpret_cast<std::byte*>(buffers.to.data()),
                               .bytes = sizes};
       group.all_to_all({&part, 1}, "tokens");
     }},
    {"places",
     [](ProcessGroup& group, bool odd) {
       std::vector<SplitPlace> places(static_cast<std::size_t>(group.size()));
       if (odd) places[0].key = 5;
       group.split(places, "shard");
     }},
};

TEST_P(Faults, EveryDivergenceIsFound) {
  for (const Divergence& divergence : kDivergences) {
    for (const int odd : {0, last()}) {
      const std::string error = error_of([&] {
        on_ranks(ranks(), [&](ProcessGroup& group) {
          EXPECT_THROW(divergence.issue(group, group.rank() == odd), GroupAborted) << divergence.name;
        });
      });
      EXPECT_TRUE(error.starts_with("ranks of group 'world' issue different collectives: rank 0 calls ")) << error;
      EXPECT_NE(error.find(", rank " + std::to_string(odd == 0 ? 1 : last()) + " calls "), std::string::npos) << error;
    }
  }
}

TEST_P(Faults, DeadRankIsNamedOnAllOthers) {
  for (int dead = 0; dead < ranks(); ++dead) {
    const std::string name = "rank " + std::to_string(dead);
    const std::string error = error_of([&] {
      on_ranks(ranks(), [&](ProcessGroup& group) {
        CheckedBuffers buffers(ranks());
        const GatherPart part = buffers.gather();
        for (int i = 0; i < 3; ++i) group.all_gather({&part, 1}, "w");
        if (group.rank() == dead) fail("layers.3: no memory left");
        const std::string echo = error_of([&] { group.all_gather({&part, 1}, "last"); });
        EXPECT_EQ(echo, "all_gather 'last' (#4: 1 part, " + std::to_string(8 * ranks()) +
                            " bytes) of group 'world' cannot complete: " + name + " died: layers.3: no memory left");
        EXPECT_THROW(group.barrier("later"), GroupAborted);
      });
    });
    EXPECT_EQ(error, name + ": layers.3: no memory left");
  }
}

TEST_P(Faults, OnlyTheFirstErrorIsReported) {
  EXPECT_EQ(error_of([&] {
              on_ranks(ranks(), [&](ProcessGroup& group) {
                if (group.rank() == last()) fail("the cause");
                group.barrier("x");  // throws out of this function
              });
            }),
            "rank " + std::to_string(last()) + ": the cause");
}

TEST_P(Faults, OutOfMemoryKeepsItsType) {
  EXPECT_THROW(on_ranks(ranks(),
                        [&](ProcessGroup& group) {
                          if (group.rank() == last()) throw OutOfMemory("1 byte too many");
                          group.barrier("x");
                        }),
               OutOfMemory);
  EXPECT_THROW(on_ranks(ranks(),
                        [&](ProcessGroup& group) {
                          if (group.rank() == 0) throw std::bad_alloc();
                          group.barrier("x");
                        }),
               OutOfMemory);
}

TEST_P(Faults, ExceptionOfAnyTypeEndsTheRun) {
  EXPECT_EQ(error_of([&] {
              on_ranks(ranks(), [&](ProcessGroup& group) {
                if (group.rank() == 0) throw 42;
                group.barrier("x");
              });
            }),
            "rank 0: an exception that is no std::exception");
}

TEST_P(Faults, CollectiveAfterARankReturnedNamesIt) {
  for (const int early : {0, last()}) {
    const std::string number = std::to_string(early);
    EXPECT_EQ(error_of([&] {
                on_ranks(ranks(), [&](ProcessGroup& group) {
                  group.barrier("start");
                  if (group.rank() == early) return;
                  EXPECT_THROW(group.barrier("end"), GroupAborted);
                });
              }),
              "rank " + number +
                  " has finished without joining barrier 'end' (#2) of group 'world'; the last collective that rank " +
                  number + " completed is barrier 'start' (#1) of group 'world'");
  }
}

TEST_P(Faults, WrongArgumentsOnOneRankEndTheRunOnAll) {
  EXPECT_EQ(error_of([&] {
              on_ranks(ranks(), [&](ProcessGroup& group) {
                if (group.rank() == last()) group.broadcast(-1, {}, "b");
                EXPECT_THROW(group.barrier("x"), GroupAborted);
              });
            }),
            "rank " + std::to_string(last()) + ": broadcast 'b' of group 'world': root -1 is none of its " +
                std::to_string(ranks()) + " ranks");
}

TEST_P(Faults, RefusedCallMayBeRepeated) {
  on_ranks(ranks(), [&](ProcessGroup& group) {
    if (group.rank() == last()) {
      EXPECT_NE(error_of([&] { group.broadcast(-1, {}, "b"); }), "");
    }
    group.broadcast(0, {}, "b");
    EXPECT_EQ(group.traffic().of(CollectiveKind::kBroadcast).collectives, 1);
  });
}

// Over MPI the latecomer finds the others' calls waiting for it, but not the bytes that should follow.
TEST_P(Faults, RankThatArrivesAfterOthersGaveUpFailsSoon) {
  if (ranks() < 3) GTEST_SKIP() << "three ranks are needed";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(
      error_of([&] {
        on_ranks(ranks(), [&](ProcessGroup& world) {
          std::int64_t run = getpid();
          const BroadcastPart name{.data = reinterpret_cast<std::byte*>(&run), .bytes = sizeof(run)};
          world.broadcast(0, {&name, 1}, "name");
          const std::filesystem::path gave_up =
              std::filesystem::temp_directory_path() / ("fp8lab-gave-up-" + std::to_string(run));
          std::vector<SplitPlace> places(static_cast<std::size_t>(ranks()));
          places[0].color = places[1].color = 1;
          const auto pair = world.split(places, "pair");
          if (world.rank() == last()) fail("boom");
          if (world.rank() > 1) return;
          // Not for ever: the failure may reach rank 0 before it has the pair, and then it never gives up.
          const auto latest = start + std::chrono::seconds(10);
          while (world.rank() == 1 && !std::filesystem::exists(gave_up) && std::chrono::steady_clock::now() < latest)
            std::this_thread::yield();
          std::vector<std::byte> bytes(1 << 20);
          const std::array<std::int64_t, 3> offsets = {0, 1 << 19, 1 << 20};
          const std::byte* own = bytes.data() + offsets[static_cast<std::size_t>(pair->rank())];
          const GatherPart part{.from = own, .to = bytes.data(), .offsets_bytes = offsets};
          EXPECT_THROW(pair->all_gather({&part, 1}, "w"), GroupAborted);
          if (world.rank() == 0) std::ofstream(gave_up).flush();
          if (world.rank() == 1) std::filesystem::remove(gave_up);
        });
      }),
      "rank " + std::to_string(last()) + ": boom");
  // Far below the timeout.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST_P(Faults, FailedRunDoesNotAffectTheNext) {
  for (int round = 0; round < 5; ++round) {
    EXPECT_NE(error_of([&] {
                on_ranks(ranks(), [&](ProcessGroup& group) {
                  if (group.rank() == round % ranks()) fail("boom");
                  group.barrier("x");
                  group.barrier("y");
                });
              }),
              "");
    on_ranks(ranks(), [&](ProcessGroup& group) {
      CheckedBuffers buffers(ranks());
      buffers.to[0] = static_cast<float>(group.rank());
      const ReducePart part = buffers.reduced(1);
      group.all_reduce(ReduceOp::kMax, {&part, 1}, "m");
      EXPECT_EQ(buffers.to[0], static_cast<float>(last()));
    });
  }
}

}  // namespace
}  // namespace fp8lab::comm_test

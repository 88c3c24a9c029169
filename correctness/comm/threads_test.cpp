#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "comm/in_process/arrivals.h"
#include "comm/ranks.h"

// Faults whose timing needs memory shared by the ranks, so that they are tested for ranks that are threads only.
namespace fp8lab::comm_test {
namespace {

using std::chrono::milliseconds;

class Threads : public testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  int last() const { return GetParam() - 1; }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Threads, testing::Values(2, 3, 4, 7, 16), testing::PrintToStringParamName());

/// A counter; threads can wait until it reaches a number.
class Count {
 public:
  void add() {
    ++value_;
    value_.notify_all();
  }
  void wait_for(int number) {
    for (int seen = value_; seen < number; seen = value_) value_.wait(seen);
  }

 private:
  std::atomic<int> value_{0};
};

// Long enough that a busy machine starts every thread meanwhile.
constexpr milliseconds kShort(1000);

class Absence : public Threads {};
INSTANTIATE_TEST_SUITE_P(Ranks, Absence, testing::Values(3, 16), testing::PrintToStringParamName());

TEST_P(Absence, MissingRankIsNamedAfterTheTimeout) {
  Count gave_up;
  const std::string number = std::to_string(last());
  const std::string cause = "rank " + number +
                            " did not come to barrier 'end' (#2) of group 'world' within 1 s; the last "
                            "collective that rank " +
                            number + " completed is barrier 'start' (#1) of group 'world'";
  EXPECT_EQ(error_of([&] {
              run_ranks("in_process", {.ranks = ranks(), .timeout = kShort}, [&](ProcessGroup& group) {
                group.barrier("start");
                if (group.rank() == last()) {
                  gave_up.wait_for(last());
                  EXPECT_THROW(group.barrier("end"), GroupAborted);
                  return;
                }
                EXPECT_EQ(error_of([&] { group.barrier("end"); }),
                          "barrier 'end' (#2) of group 'world' cannot complete: " + cause);
                gave_up.add();
              });
            }),
            cause);
}

TEST_P(Absence, EveryMissingRankIsNamed) {
  Count gave_up;
  const std::string error = error_of([&] {
    run_ranks("in_process", {.ranks = ranks(), .timeout = kShort}, [&](ProcessGroup& group) {
      if (group.rank() < 2) return gave_up.wait_for(ranks() - 2);
      EXPECT_THROW(group.barrier("x"), GroupAborted);
      gave_up.add();
    });
  });
  EXPECT_EQ(error,
            "rank 0 and rank 1 did not come to barrier 'x' (#1) of group 'world' within 1 s; rank 0 has completed no "
            "collective");
}

TEST_P(Threads, DeathOfARankReleasesWaitingRanks) {
  for (int round = 0; round < 30; ++round) {
    Count on_the_way;
    EXPECT_EQ(error_of([&] {
                on_ranks(ranks(), [&](ProcessGroup& group) {
                  if (group.rank() == 0) {
                    on_the_way.wait_for(last());
                    fail("boom");
                  }
                  on_the_way.add();
                  EXPECT_THROW(group.barrier("x"), GroupAborted);
                });
              }),
              "rank 0: boom");
  }
}

TEST_P(Threads, DeathOfARankReleasesOtherSubGroups) {
  Count on_the_way;
  EXPECT_EQ(error_of([&] {
              on_ranks(ranks(), [&](ProcessGroup& world) {
                std::vector<SplitPlace> places(static_cast<std::size_t>(ranks()));
                places[0].color = 1;  // only rank 0
                const auto group = world.split(places, "part");
                if (world.rank() == 0) {
                  on_the_way.wait_for(last());
                  fail("boom");
                }
                on_the_way.add();
                EXPECT_THROW(for (;;) group->barrier("x"), GroupAborted);
              });
            }),
            "rank 0: boom");
}

TEST_P(Threads, StopRequestEndsEveryRank) {
  std::stop_source source;
  Count rounds;
  std::jthread outside([&] {
    rounds.wait_for(10 * ranks());
    source.request_stop();
  });
  EXPECT_EQ(error_of([&] {
              run_ranks("in_process", {.ranks = ranks(), .stop = source.get_token()}, [&](ProcessGroup& group) {
                const std::string error = error_of([&] {
                  for (;;) {
                    group.barrier("round");
                    rounds.add();
                  }
                });
                EXPECT_TRUE(error.ends_with(" cannot complete: the run was stopped from outside")) << error;
              });
            }),
            "the run was stopped from outside");
}

TEST_P(Threads, StopRequestReachesRanksThatWaitForABusyRank) {
  std::stop_source source;
  Count on_the_way;
  Count gave_up;
  std::jthread outside([&] {
    on_the_way.wait_for(last());
    source.request_stop();
  });
  EXPECT_EQ(error_of([&] {
              run_ranks("in_process", {.ranks = ranks(), .stop = source.get_token()}, [&](ProcessGroup& group) {
                if (group.rank() == 0) return gave_up.wait_for(last());
                on_the_way.add();
                EXPECT_THROW(group.barrier("x"), GroupAborted);
                gave_up.add();
              });
            }),
            "the run was stopped from outside");
}

TEST(Arrivals, NoArrivalCompletesAClosedTarget) {
  in_process::Arrivals arrivals;
  EXPECT_TRUE(arrivals.add());
  EXPECT_TRUE(arrivals.add());
  EXPECT_TRUE(arrivals.reached(2));
  EXPECT_FALSE(arrivals.reached(3));
  EXPECT_FALSE(arrivals.close_short_of(2));  // too late
  EXPECT_TRUE(arrivals.add());
  EXPECT_TRUE(arrivals.close_short_of(4));
  EXPECT_TRUE(arrivals.close_short_of(4));
  EXPECT_FALSE(arrivals.add());
  EXPECT_TRUE(arrivals.reached(3));
  EXPECT_FALSE(arrivals.reached(4));
}

TEST(Arrivals, EndEitherClosedOrComplete) {
  for (int round = 0; round < 500; ++round) {
    in_process::Arrivals arrivals;
    std::atomic<int> added{0};
    bool closed = false;
    {
      std::jthread first([&] { added += arrivals.add() ? 1 : 0; });
      std::jthread second([&] { added += arrivals.add() ? 1 : 0; });
      closed = arrivals.close_short_of(2);
    }
    EXPECT_NE(closed, arrivals.reached(2));
    EXPECT_EQ(arrivals.reached(2), added == 2);
  }
}

// The abort comes at any moment, also between a rank's check of the abort flag and its arrival.
TEST_P(Threads, CollectiveFailsOnAllRanksOrNone) {
  for (int round = 0; round < 1000 / ranks(); ++round) {
    std::stop_source source;
    Count arrivals;
    std::jthread outside([&] {
      arrivals.wait_for(1 + round % (3 * ranks()));
      source.request_stop();
    });
    std::vector<int> completed(static_cast<std::size_t>(ranks()));
    EXPECT_NE(error_of([&] {
                run_ranks("in_process", {.ranks = ranks(), .stop = source.get_token()}, [&](ProcessGroup& group) {
                  for (int& own = completed[static_cast<std::size_t>(group.rank())];; ++own) {
                    arrivals.add();
                    group.barrier("x");
                  }
                });
              }),
              "");
    for (const int count : completed) ASSERT_EQ(count, completed.front()) << "round " << round;
  }
}

TEST(Stop, BeforeTheRunEndsTheFirstCollective) {
  std::stop_source source;
  source.request_stop();
  for (const std::string_view row : {"in_process", "simulated"}) {
    EXPECT_EQ(error_of([&] {
                run_ranks(row, {.ranks = 3, .stop = source.get_token()},
                          [](ProcessGroup& group) { EXPECT_THROW(group.barrier("x"), GroupAborted); });
              }),
              "the run was stopped from outside");
  }
}

TEST(Stop, ReachesASimulatedRank) {
  std::stop_source source;
  EXPECT_EQ(error_of([&] {
              run_ranks("simulated", {.ranks = 8, .stop = source.get_token()}, [&](ProcessGroup& group) {
                group.barrier("before");
                source.request_stop();
                EXPECT_THROW(group.barrier("after"), GroupAborted);
              });
            }),
            "the run was stopped from outside");
}

// Once a rank has its error it may free its buffers: no other rank reads them any more. Sanitizers watch.
TEST_P(Threads, BuffersMayBeFreedOnceACollectiveHasFailed) {
  const std::vector<std::int64_t> offsets = kSharings[0].offsets(ranks());
  for (int round = 0; round < 40; ++round) {
    std::stop_source source;
    Count started;
    std::jthread outside([&] {
      started.wait_for(ranks() * (1 + round % 3));
      source.request_stop();
    });
    EXPECT_NE(error_of([&] {
                run_ranks("in_process", {.ranks = ranks(), .stop = source.get_token()}, [&](ProcessGroup& group) {
                  for (;;) {
                    const std::vector<std::byte> own(1024, std::byte{1});
                    std::vector<std::byte> to(static_cast<std::size_t>(offsets.back()));
                    std::vector<float> sum(2048, 1.0f);
                    const GatherPart gather{.from = own.data(), .to = to.data(), .offsets_bytes = offsets};
                    const ReducePart reduced{.data = reinterpret_cast<std::byte*>(sum.data()), .elems = 2048};
                    started.add();
                    group.all_gather({&gather, 1}, "w");
                    group.all_reduce(ReduceOp::kSum, {&reduced, 1}, "g");
                  }
                });
              }),
              "");
  }
}

TEST_P(Threads, DeathOfARankAtAnyMomentEndsTheRun) {
  for (int round = 0; round < 60; ++round) {
    const int dead = round % ranks();
    const int lives = static_cast<int>(reference::scramble(static_cast<std::uint64_t>(round)) % 20);
    const std::string error = error_of([&] {
      on_ranks(ranks(), [&](ProcessGroup& world) {
        std::vector<SplitPlace> places;
        for (int rank = 0; rank < ranks(); ++rank) places.push_back({rank % 2, rank});
        const auto half = world.split(places, "half");
        for (int i = 0;; ++i) {
          if (world.rank() == dead && i == lives) fail("boom");
          (i % 3 == 0 ? world : *half).barrier("x");
        }
      });
    });
    EXPECT_EQ(error, "rank " + std::to_string(dead) + ": boom");
  }
}

TEST(Runs, AreIndependentOfEachOther) {
  std::vector<std::jthread> runs;
  for (int run = 0; run < 3; ++run) {
    runs.emplace_back([run] {
      for (int round = 0; round < 20; ++round) {
        const std::string error = error_of([&] {
          on_ranks(3, [&](ProcessGroup& group) {
            group.barrier("x");
            if (run == 1 && group.rank() == 2) fail("boom");
            group.barrier("y");
          });
        });
        EXPECT_EQ(error, run == 1 ? "rank 2: boom" : "");
      }
    });
  }
}

TEST(Runs, OfOneRankKeepTheMessageOfItsError) {
  EXPECT_EQ(error_of([] { on_ranks(1, [](ProcessGroup&) { fail("boom"); }); }), "boom");
}

}  // namespace
}  // namespace fp8lab::comm_test

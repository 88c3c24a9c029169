#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "comm/ranks.h"

// A deadlock over several groups: ranks wait for each other in collectives of different groups, and no group's calls
// differ. The run ends at once and names them. Only ranks that are threads can be tested: each of them sees in which
// collective the others wait.
namespace fp8lab::comm_test {
namespace {

/// Far longer than a test may take, so that only the deadlock search can end these runs.
constexpr std::chrono::minutes kNever(60);

/// The work of a rank with the world and with groups of the same ranks.
using Groups = std::vector<std::unique_ptr<ProcessGroup>>;
using OfRank = std::function<void(ProcessGroup& world, Groups& groups)>;

/// `members[i]` are the ranks of group i, which is called "g<i>".
std::string deadlock(int ranks, const std::vector<std::vector<int>>& members, const OfRank& of_rank) {
  return error_of([&] {
    run_ranks("in_process", {.ranks = ranks, .timeout = kNever}, [&](ProcessGroup& world) {
      Groups groups;
      for (std::size_t i = 0; i < members.size(); ++i) {
        std::vector<SplitPlace> places(static_cast<std::size_t>(ranks));
        for (const int member : members[i]) places[static_cast<std::size_t>(member)].color = 1;
        groups.push_back(world.split(places, "g" + std::to_string(i)));
      }
      of_rank(world, groups);
    });
  });
}

constexpr const char* kEnd = "; one of them skipped a collective, or they call theirs in different orders";

/// The message names the ranks of a cycle; it starts with the rank that closed the cycle.
void expect_cycle(const std::string& error, const std::vector<std::string>& waits) {
  std::vector<std::string> seen;
  for (std::size_t first = 0; first < waits.size(); ++first) {
    std::string expected = "ranks wait for each other in different collectives:";
    for (std::size_t i = 0; i < waits.size(); ++i)
      expected += (i == 0 ? " " : "; ") + waits[(first + i) % waits.size()];
    seen.push_back(expected + kEnd);
  }
  EXPECT_NE(std::find(seen.begin(), seen.end(), error), seen.end()) << error;
}

TEST(Deadlock, TwoRanksThatWaitInTwoGroupsAreNamedWithTheirCalls) {
  for (int round = 0; round < 200; ++round) {
    const std::string error = deadlock(2, {{0, 1}}, [](ProcessGroup& world, Groups& groups) {
      ProcessGroup& first = world.rank() == 0 ? world : *groups[0];
      const std::string echo = error_of([&] { first.barrier("step"); });
      EXPECT_NE(echo.find(" cannot complete: ranks wait for each other"), std::string::npos) << echo;
    });
    expect_cycle(error, {"rank 0 waits for rank 1 in barrier 'step' (#2) of group 'world'",
                         "rank 1 waits for rank 0 in barrier 'step' (#1) of group 'g0'"});
  }
}

TEST(Deadlock, RankThatSkipsACollectiveOfOneGroupIsFoundInTheNext) {
  for (const int ranks : {2, 3, 4, 5, 7, 8, 16})
    for (const int skips : {0, ranks - 1}) {
      std::vector<int> all;
      for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
      const std::string error = deadlock(ranks, {all}, [&](ProcessGroup& world, Groups& groups) {
        for (int i = 0; i < 3; ++i) groups[0]->barrier("layers[0]");
        if (world.rank() != skips) groups[0]->barrier("layers[1]");
        world.barrier("hashes");
      });
      EXPECT_TRUE(error.starts_with("ranks wait for each other in different collectives: ")) << error;
      const std::string skipping = "rank " + std::to_string(skips) + " waits for rank ";
      const std::size_t at = error.find(skipping);
      ASSERT_NE(at, std::string::npos) << error;
      EXPECT_NE(error.find("in barrier 'hashes' (#2) of group 'world'", at), std::string::npos) << error;
      EXPECT_NE(error.find(" waits for rank " + std::to_string(skips) + " in barrier 'layers[1]' (#4) of group 'g0'"),
                std::string::npos)
          << error;
    }
}

TEST(Deadlock, CycleOfThreeGroupsIsFound) {
  const std::string error = deadlock(3, {{0, 1}, {1, 2}, {2, 0}}, [](ProcessGroup& world, Groups& groups) {
    groups[static_cast<std::size_t>(world.rank())]->barrier("mine");
  });
  expect_cycle(error, {"rank 0 waits for rank 1 in barrier 'mine' (#1) of group 'g0'",
                       "rank 1 waits for rank 2 in barrier 'mine' (#1) of group 'g1'",
                       "rank 2 waits for rank 0 in barrier 'mine' (#1) of group 'g2'"});
}

// The other ranks never arrive. The search finds the cycle without them.
TEST(Deadlock, CycleOfSomeRanksIsFoundWithoutTheOthers) {
  std::atomic<bool> ended{false};
  const std::string error = deadlock(4, {{1, 2}, {2, 1}}, [&](ProcessGroup& world, Groups& groups) {
    if (world.rank() == 0 || world.rank() == 3) return ended.wait(false);
    EXPECT_THROW(groups[static_cast<std::size_t>(world.rank() - 1)]->barrier("mine"), GroupAborted);
    ended = true;
    ended.notify_all();
  });
  expect_cycle(error, {"rank 1 waits for rank 2 in barrier 'mine' (#1) of group 'g0'",
                       "rank 2 waits for rank 1 in barrier 'mine' (#1) of group 'g1'"});
}

// Late ranks are no deadlock: groups that overlap, used by all ranks in one order, with delays at different places.
TEST(Deadlock, LateRanksAreNoDeadlock) {
  constexpr int kRanks = 6;
  std::vector<std::vector<int>> members;
  for (int a = 0; a < kRanks; ++a)
    for (int b = a + 1; b < kRanks; ++b) members.push_back({a, b});
  EXPECT_EQ(deadlock(kRanks, members,
                     [&](ProcessGroup& world, Groups& groups) {
                       std::mt19937 random(1);
                       for (int i = 0; i < 3000; ++i) {
                         const std::size_t next = random() % (members.size() + 1);
                         if (next == members.size())
                           world.barrier("all");
                         else if (groups[next]->size() == 2)
                           groups[next]->barrier("pair");
                       }
                     }),
            "");
}

}  // namespace
}  // namespace fp8lab::comm_test

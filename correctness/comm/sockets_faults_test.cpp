#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "comm/launch.h"
#include "comm/victim_run.h"

// The launcher does not end the survivors here: each finds out by itself which rank died.
namespace fp8lab::comm_test {
namespace {

int count(const std::string& text, const std::string& wanted) {
  int found = 0;
  for (std::size_t at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) ++found;
  return found;
}

class SocketsFaults : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Ends, SocketsFaults, testing::Values("killed", "killed_in_flight", "crashed", "exited"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(SocketsFaults, EverySurvivorNamesTheDeadRank) {
  std::string end = GetParam();
  if (end == "killed_in_flight") end = "killed-in-flight";
  const Outcome& outcome = run_victim(end);
  EXPECT_EQ(count(outcome.output, "victim: rank 1: its process has ended, or "), 3) << outcome.output;
  EXPECT_EQ(count(outcome.output, "victim: "), 3) << outcome.output;
  // Far below the timeout.
  EXPECT_LT(outcome.seconds, 10) << outcome.output;
}

// A rank completes a collective when the kernel has taken its last bytes, which arrive though it is stopped.
TEST(SocketsFaults, EverySurvivorNamesTheStoppedRank) {
  const Outcome& outcome = run_victim("stopped");
  EXPECT_EQ(count(outcome.output, "victim: rank 1 did not come to all_gather 'weights' (#21"), 3) << outcome.output;
  EXPECT_EQ(count(outcome.output, "victim: "), 3) << outcome.output;
}

TEST(SocketsFaults, ErrorOfOneRankIsReportedOnAll) {
  const Outcome& outcome = run_victim("thrown");
  EXPECT_EQ(count(outcome.output, "victim: rank 1: boom\n"), 4) << outcome.output;
}

/// Runs the victim program, whose rank 1 begins after `delay_s` and then ends well.
Outcome run_late(const std::string& delay_s) {
  const std::string marker = "fp8lab-late-" + std::to_string(getpid()) + "-" + delay_s;
  return run_command(std::string(paths::kLauncher) + " /bin/sh -c 'test $RANK = 1 && sleep " + delay_s + "; exec " +
                         paths::kVictim + " well " + marker + "'",
                     marker);
}

TEST(SocketsFaults, LateRankIsAwaited) {
  const Outcome outcome = run_late("1");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.output, "");
}

TEST(SocketsFaults, RankAfterTheDeadlineIsNamedAndNamesTheOthers) {
  const Outcome outcome = run_late("3");
  EXPECT_EQ(count(outcome.output, "victim: rank 1 of 4 ranks did not come to "), 3) << outcome.output;
  EXPECT_EQ(count(outcome.output, "victim: rank 0 and rank 2 and rank 3 of 4 ranks did not come to "), 1)
      << outcome.output;
}

// The second job runs while rank 1 of the first one is awaited.
TEST(SocketsFaults, TwoJobsAtOnceDoNotDisturbEachOther) {
  Outcome late;
  std::jthread first([&] { late = run_late("1.5"); });
  const Outcome second = run_late("0");
  first.join();
  EXPECT_EQ(second.output, "");
  EXPECT_EQ(late.output, "");
  EXPECT_EQ(second.status + late.status, 0);
}

}  // namespace
}  // namespace fp8lab::comm_test

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "comm/victim_run.h"
#include "support/test_device.h"

// Kills, stops and silences a real rank among processes: the others end soon, with one cause, and nobody stays behind.
namespace fp8lab::comm_test {
namespace {

TEST(LaunchedFaults, AHealthyRunEndsWell) {
  const Outcome outcome = run_victim("well");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.output, "");
  EXPECT_EQ(outcome.survivors, 0);
}

class LaunchedFaults : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Ends, LaunchedFaults,
                         testing::Values("killed", "killed-in-flight", "crashed", "stopped", "exited", "thrown",
                                         "silent"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(LaunchedFaults, EndEveryRankAndLeaveNoOrphan) {
  const Outcome outcome = run_victim(GetParam());
  EXPECT_NE(outcome.output.find(std::string("ends now: ") + GetParam() + "\n"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.status, 0) << outcome.output;
  // A timeout of some seconds to miss the rank, as much again to hear from it, and the start and end of the launcher.
  EXPECT_LT(outcome.seconds, 30) << outcome.output;
  EXPECT_EQ(outcome.survivors, 0) << outcome.output;
}

TEST(LaunchedFaults, ARankThatDiesByExceptionIsTheOneCause) {
  const Outcome outcome = run_victim("thrown");
  EXPECT_NE(outcome.output.find("victim: rank 1: boom\n"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("cannot complete"), std::string::npos) << outcome.output;
}

TEST(LaunchedFaults, ASilentRankIsNamed) {
  const Outcome outcome = run_victim("silent");
  // On GPUs it gathers in memory of two kinds.
  const bool on_gpu = support::test_device() != "cpu";
  const std::string expected = fmt::format(
      "victim: rank 1 did not come to all_gather 'weights' (#21: {}, {} bytes) of group 'world' within {} s; the last "
      "collective that "
      "rank 1 completed is all_gather 'weights' (#20",
      on_gpu ? "2 parts" : "1 part", (on_gpu ? 2 : 1) * FP8LAB_LAUNCHED_RANKS * (4 << 20), FP8LAB_TIMEOUT);
  EXPECT_NE(outcome.output.find(expected), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace fp8lab::comm_test

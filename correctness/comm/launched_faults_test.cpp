#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "comm/victim_run.h"
#include "support/test_device.h"

// Kills, stops and silences a rank that is a process: the others end soon, with one cause, and no process is left.
namespace fp8lab::comm_test {
namespace {

TEST(LaunchedFaults, RunWithoutAFaultSucceeds) {
  const Outcome& outcome = run_victim("well");
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

TEST_P(LaunchedFaults, EndEveryRankAndLeaveNoProcess) {
  const Outcome& outcome = run_victim(GetParam());
  EXPECT_NE(outcome.output.find(std::string("ends now: ") + GetParam() + "\n"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.status, 0) << outcome.output;
  // The timeout, which is some seconds, passes up to twice: until the silent rank is missed, and again while others
  // wait for its shutdown message. The launcher takes time to start and to end.
  EXPECT_LT(outcome.seconds, 30) << outcome.output;
  EXPECT_EQ(outcome.survivors, 0) << outcome.output;
}

TEST(LaunchedFaults, RankThatThrowsIsTheOnlyCause) {
  const Outcome& outcome = run_victim("thrown");
  EXPECT_NE(outcome.output.find("victim: rank 1: boom\n"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("cannot complete"), std::string::npos) << outcome.output;
}

TEST(LaunchedFaults, SilentRankIsNamed) {
  const Outcome& outcome = run_victim("silent");
  // On GPUs the victim also gathers in the shared window, and each part has 4 MiB per rank, else 1 MiB.
  const bool on_gpu = support::test_device() != "cpu";
  const std::string expected = fmt::format(
      "victim: rank 1 did not come to all_gather 'weights' (#21: {}, {} bytes) of group 'world' within {} s; the last "
      "collective that "
      "rank 1 completed is all_gather 'weights' (#20",
      on_gpu ? "2 parts" : "1 part", (on_gpu ? 2 * 4 : 1) * FP8LAB_LAUNCHED_RANKS * (1 << 20), FP8LAB_TIMEOUT);
  EXPECT_NE(outcome.output.find(expected), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace fp8lab::comm_test

#include <gtest/gtest.h>

#include <string>

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

// A rank completes a collective when its last bytes are queued; libzmq's thread sends them. A stop halts that thread
// too, so the survivors miss rank 1 either at the next collective or with bytes of the last one outstanding.
TEST(SocketsFaults, EverySurvivorNamesTheStoppedRank) {
  const Outcome& outcome = run_victim("stopped");
  const int absent = count(outcome.output, "victim: rank 1 did not come to all_gather 'weights' (#21");
  const int stalled = count(outcome.output, "victim: rank 1 came to all_gather 'weights' (#20");
  EXPECT_EQ(absent + stalled, 3) << outcome.output;
  EXPECT_EQ(count(outcome.output, "victim: "), 3) << outcome.output;
}

TEST(SocketsFaults, ErrorOfOneRankIsReportedOnAll) {
  const Outcome& outcome = run_victim("thrown");
  EXPECT_EQ(count(outcome.output, "victim: rank 1: boom\n"), 4) << outcome.output;
}

}  // namespace
}  // namespace fp8lab::comm_test

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

// Kills, stops and silences a real rank under mpirun: the others end soon, with one cause, and nobody stays behind.
namespace fp8lab::comm_test {
namespace {

struct Outcome {
  int status = 0;
  std::string output;
  double seconds = 0;
  int survivors = 0;
};

/// Processes whose command line contains `marker`.
int processes_with(const std::string& marker) {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    const std::string words{std::istreambuf_iterator<char>(file), {}};
    if (words.find(marker) != std::string::npos) ++found;
  }
  return found;
}

/// Runs the victim program under mpirun with four ranks.
Outcome run_victim(const std::string& end) {
  const std::string marker = "fp8lab-victim-" + std::to_string(getpid()) + "-" + end;
  const std::string command = std::string(FP8LAB_MPIRUN) + " -n 4 " FP8LAB_VICTIM " " + end + " 4 " + marker + " 2>&1";
  const auto start = std::chrono::steady_clock::now();
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen: " + command);
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) outcome.output += static_cast<char>(c);
  outcome.status = pclose(pipe);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  outcome.survivors = processes_with(marker);
  return outcome;
}

TEST(MpiFaults, AHealthyRunEndsWell) {
  const Outcome outcome = run_victim("well");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.output, "");
  EXPECT_EQ(outcome.survivors, 0);
}

class MpiFaults : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Ends, MpiFaults,
                         testing::Values("killed", "killed-in-flight", "crashed", "stopped", "exited", "thrown",
                                         "silent"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(MpiFaults, EndEveryRankAndLeaveNoOrphan) {
  const Outcome outcome = run_victim(GetParam());
  EXPECT_NE(outcome.status, 0) << outcome.output;
  // A timeout of 2 s to miss the rank, as much again to hear from it, and the start and end of mpirun.
  EXPECT_LT(outcome.seconds, 30) << outcome.output;
  EXPECT_EQ(outcome.survivors, 0) << outcome.output;
}

TEST(MpiFaults, ARankThatDiesByExceptionIsTheOneCause) {
  const Outcome outcome = run_victim("thrown");
  EXPECT_NE(outcome.output.find("victim: rank 1: boom\n"), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("cannot complete"), std::string::npos) << outcome.output;
}

TEST(MpiFaults, ASilentRankIsNamed) {
  const Outcome outcome = run_victim("silent");
  EXPECT_NE(
      outcome.output.find("victim: rank 1 did not come to all_gather 'weights' (#21: 1 part, 16777216 bytes) of group "
                          "'world' within 2 s; the last collective that rank 1 completed is all_gather 'weights' (#20"),
      std::string::npos)
      << outcome.output;
}

}  // namespace
}  // namespace fp8lab::comm_test

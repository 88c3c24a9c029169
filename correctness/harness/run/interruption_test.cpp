#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "harness/run/fake_process.h"
#include "support/paths.h"

// Runs that are stopped by a user, by a system, or by force.
namespace fp8lab {
namespace {

using Json = nlohmann::json;
using sample::contains;
using sample::Ended;
using sample::Process;
using sample::Scenarios;
using std::chrono::seconds;
using std::chrono::steady_clock;

/// Ids of the processes whose parent is `parent`.
std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream in("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
  std::vector<pid_t> out;
  for (pid_t pid; in >> pid;) out.push_back(pid);
  return out;
}

/// Whether the process is running; false for zombies, which are dead and not yet reaped.
bool runs(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string number, command, state;
  return static_cast<bool>(in >> number >> command >> state) && state != "Z" && state != "X";
}

/// Whether a signal that was sent to `pid` is still pending.
bool is_pending(pid_t pid, int signal) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("ShdPnd:")) return (std::stoull(line.substr(7), nullptr, 16) >> (signal - 1) & 1) != 0;
  return false;
}

template <class Condition>
bool comes_true(Condition condition) {
  const auto give_up = steady_clock::now() + seconds(20);
  while (steady_clock::now() < give_up) {
    if (condition()) return true;
    ::poll(nullptr, 0, 2);
  }
  return false;
}

/// A run that has written `good` and hangs in `hanging`, with idle processes that wait for another arm.
struct HangingRun {
  Scenarios scenarios;
  Process process;
  std::vector<pid_t> children;

  explicit HangingRun(const std::string& hanging)
      : scenarios({hanging, "good"}), process(scenarios.run_arguments({"-j", "2"})) {
    const auto hangs = [&] {
      children = children_of(process.pid());
      return !children.empty() && scenarios.read("results.jsonl").ends_with("\n");
    };
    EXPECT_TRUE(comes_true(hangs));
  }
};

void expect_valid_rest(const HangingRun& run) {
  const Json results = Json::parse(run.scenarios.results());
  EXPECT_EQ(results["complete"], false);
  ASSERT_EQ(results["cells"].size(), 1u);
  EXPECT_EQ(results["cells"][0]["id"], "good");
  EXPECT_EQ(run.scenarios.violations(), std::vector<std::string>{});
  EXPECT_TRUE(contains(run.scenarios.read("summary.md"), "Stopped before its end: 1 of 2"));
  EXPECT_TRUE(contains(run.scenarios.read("junit.xml"), "</testsuites>"));
  for (const pid_t child : run.children) EXPECT_FALSE(runs(child));
}

TEST(Interruption, CtrlC_StopsEveryChildAndLeavesAValidResultSet) {
  HangingRun run("before_hang");
  run.process.signal(SIGINT);
  EXPECT_EQ(run.process.finish(), 130);
  EXPECT_TRUE(contains(run.process.output, "stopped: 1 of 2 cells finished")) << run.process.output;
  EXPECT_TRUE(contains(run.process.output, "exit 130: interrupted"));
  expect_valid_rest(run);
}

TEST(Interruption, Termination_StopsEveryChildAndLeavesAValidResultSet) {
  HangingRun run("before_hang");
  run.process.signal(SIGTERM);
  EXPECT_EQ(run.process.finish(), 143);
  expect_valid_rest(run);
}

TEST(Interruption, IgnoredSignals_StayIgnored) {
  const Scenarios scenarios({"before_hang", "good"});
  for (const std::string signal : {"HUP", "INT"}) {
    const std::string command = "trap '' " + signal + "; " + std::string(paths::kFakeProgram) + " run " +
                                scenarios.path() + " -o " + scenarios.out() +
                                " -j 2 --timeout 1 > /dev/null & program=$!; until grep -qs good " + scenarios.out() +
                                "/results.jsonl; do sleep 0.01; done; kill -" + signal + " $program; wait $program";
    const int status = std::system(command.c_str());
    ASSERT_TRUE(WIFEXITED(status)) << signal;
    EXPECT_EQ(WEXITSTATUS(status), 124) << signal << ": the cell that hangs was to be waited for";
    EXPECT_EQ(Json::parse(scenarios.results())["complete"], true);
    std::filesystem::remove_all(scenarios.out());
  }
}

TEST(Interruption, SecondCtrlC_KillsAtOnce) {
  HangingRun run("before_deaf");
  const auto start = steady_clock::now();
  run.process.signal(SIGINT);
  // Two pending signals of one kind count as one, so the first must have been delivered.
  ASSERT_TRUE(comes_true([&] { return !is_pending(run.process.pid(), SIGINT); }));
  run.process.signal(SIGINT);
  EXPECT_EQ(run.process.finish(), 130);
  EXPECT_LT(steady_clock::now() - start, seconds(2)) << "the grace of the first request was waited for";
  expect_valid_rest(run);
}

TEST(Interruption, SecondCtrlC_AfterTheLastChildEnded_ResultsAreCompleteAndExitCodeIs130) {
  HangingRun run("before_hang");
  run.process.signal(SIGINT);
  ASSERT_TRUE(comes_true([&] { return children_of(run.process.pid()).empty(); }));
  run.process.signal(SIGINT);
  EXPECT_EQ(run.process.finish(), 130);
  expect_valid_rest(run);
}

// The last line may still be in the pipe when the program has nothing left to do but exit.
TEST(Interruption, SecondCtrlC_AfterTheLastLine_ExitCodeIsThePrintedOne) {
  for (int i = 0; i < 10; ++i) {
    HangingRun run("before_hang");
    run.process.signal(SIGINT);
    run.process.read_until("exit 130");
    run.process.signal(SIGINT);
    EXPECT_EQ(run.process.finish(), 130);
  }
}

// The signal comes while arms are being started: the last child is still a copy of this program and does not run the
// arm yet.
TEST(Interruption, CtrlC_WhileArmsStart_EndsTheRunAtOnce) {
  for (int i = 0; i < 10; ++i) {
    const Scenarios scenarios({"before_hang"});
    Process process(scenarios.run_arguments({"-j", "8"}));
    ASSERT_TRUE(comes_true([&] { return !children_of(process.pid()).empty(); }));
    const auto start = steady_clock::now();
    process.signal(SIGINT);
    EXPECT_EQ(process.finish(), 130);
    EXPECT_LT(steady_clock::now() - start, std::chrono::milliseconds(1500)) << "an arm did not hear that it was to end";
  }
}

TEST(Interruption, Kill_LeavesNoOrphanAndUsableLines) {
  HangingRun run("before_deaf");
  run.process.signal(SIGKILL);
  EXPECT_EQ(run.process.finish(), -SIGKILL);
  EXPECT_TRUE(comes_true([&] { return !runs(run.children.at(0)); }));
  const std::string lines = run.scenarios.read("results.jsonl");
  ASSERT_TRUE(lines.ends_with("\n"));
  EXPECT_EQ(Json::parse(lines)["id"], "good");
  EXPECT_FALSE(std::filesystem::exists(run.scenarios.out() + "/results.json"));
  const Ended resumed = sample::run(run.scenarios.run_arguments({"--resume", "-f", "good"}));
  EXPECT_EQ(resumed.code, 0) << resumed.errors;
  EXPECT_EQ(Json::parse(run.scenarios.results())["cells"].size(), 1u);
}

/// A $TMPDIR of this test's own, and the folders of runs in it.
class TemporaryFiles {
 public:
  TemporaryFiles() : before_(std::filesystem::temp_directory_path().string()) {
    ::setenv("TMPDIR", folder_.string().c_str(), 1);
  }
  ~TemporaryFiles() { ::setenv("TMPDIR", before_.c_str(), 1); }

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.string()))
      if (const std::string name = entry.path().filename(); name.starts_with("fp8lab-run-")) out.push_back(name);
    std::sort(out.begin(), out.end());
    return out;
  }

 private:
  std::string before_;
  sample::TemporaryDirectory folder_;
};

TEST(Interruption, Kill_TemporaryFilesAreRemovedByTheNextRun) {
  const TemporaryFiles temporary;
  HangingRun run("before_deaf");
  const std::vector<std::string> folders = temporary.names();
  ASSERT_EQ(folders.size(), 1u);
  sample::write(temporary.path(folders[0]) / "arm-0/values", "large");
  const std::string other = run.scenarios.out() + "-other";
  EXPECT_EQ(sample::run({"run", run.scenarios.path(), "-o", other, "-f", "good"}).code, 0);
  EXPECT_EQ(temporary.names(), folders) << "a run that lives keeps its folder, and another one removes its own";
  run.process.signal(SIGKILL);
  EXPECT_EQ(run.process.finish(), -SIGKILL);
  EXPECT_EQ(temporary.names(), folders);
  EXPECT_EQ(sample::run(run.scenarios.run_arguments({"--resume", "-f", "good"})).code, 0);
  EXPECT_EQ(temporary.names(), std::vector<std::string>{});
}

TEST(Interruption, TemporaryFolders_ThatMayBelongToAnother_AreKept) {
  const TemporaryFiles temporary;
  const Scenarios scenarios({"good"});
  sample::write(temporary.path("elsewhere/lock"), "");
  std::filesystem::create_directory_symlink("elsewhere", temporary.path("fp8lab-run-link"));
  sample::write(temporary.path("fp8lab-run-linked-lock/values"), "");
  std::filesystem::create_symlink("../elsewhere/lock", temporary.path("fp8lab-run-linked-lock/lock"));
  sample::write(temporary.path("fp8lab-run-starts/values"), "");
  sample::write(temporary.path("fp8lab-run-old/values"), "");
  std::filesystem::last_write_time(temporary.path("fp8lab-run-old"),
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_EQ(sample::run(scenarios.run_arguments()).code, 0);
  const std::vector<std::string> kept{"fp8lab-run-link", "fp8lab-run-linked-lock", "fp8lab-run-starts"};
  EXPECT_EQ(temporary.names(), kept);
  EXPECT_TRUE(std::filesystem::exists(temporary.path("elsewhere/lock")));
}

TEST(Interruption, TemporaryFolder_ThatCannotBeMade_DoesNotEndTheRun) {
  const Scenarios scenarios({"good"});
  const TemporaryFiles temporary;
  ::setenv("TMPDIR", "/proc", 1);
  EXPECT_EQ(sample::run(scenarios.run_arguments()).code, 0);
}

TEST(Interruption, ClosedPipe_DoesNotEndTheRun) {
  const Scenarios scenarios({"one", "two", "three"});
  const std::string command =
      std::string(paths::kFakeProgram) + " run " + scenarios.path() + " -o " + scenarios.out() + " | true";
  EXPECT_EQ(std::system(command.c_str()), 0);
  ASSERT_TRUE(comes_true([&] { return std::filesystem::exists(scenarios.out() + "/summary.md"); }));
  EXPECT_EQ(Json::parse(scenarios.results())["complete"], true);
}

}  // namespace
}  // namespace fp8lab

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "harness/run/fake_process.h"
#include "harness/run/launched_ranks.h"
#include "support/paths.h"

// `fp8lab run` on every rank of a launch: rank 0 reports, and all ranks end with the same exit code.
namespace fp8lab {
namespace {

using Json = nlohmann::json;
using sample::contains;
using sample::Ended;
using sample::Scenarios;

constexpr int kRanks = 3;

int count(const std::string& text, const std::string& wanted) {
  int found = 0;
  for (std::size_t at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) ++found;
  return found;
}

/// Runs the program on three ranks. Each also prints "exit " and its exit code.
Ended run_launched(const Scenarios& scenarios, const std::string& more = {}) {
  const std::string command = std::string(paths::kRankProgram) + " run " + scenarios.path() + " -o " + scenarios.out() +
                              " " + more + "; code=$?; echo exit $code; exit $code";
  return sample::run({std::to_string(kRanks), "60", "/bin/sh", "-c", command});
}

void add(Scenarios& scenarios, const std::string& name, const std::string& more = {}) {
  scenarios.add(name, "device: meta\nranks: 3\n" + more);
}

std::vector<Json> cells_of(const Scenarios& scenarios) {
  std::vector<Json> cells;
  std::istringstream lines(scenarios.cell_lines());
  for (std::string line; std::getline(lines, line);) cells.push_back(Json::parse(line));
  return cells;
}

TEST(Launched, RankZeroReportsAndAllRanksExitAlike) {
  Scenarios scenarios({});
  add(scenarios, "first");
  add(scenarios, "second");
  const Ended ended = run_launched(scenarios);
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_EQ(count(ended.output, "exit 0\n"), kRanks) << ended.output;
  EXPECT_EQ(count(ended.output, "3 ranks: torchrun launched the ranks: they connect over Unix sockets\n"), 1)
      << ended.output;
  EXPECT_EQ(count(ended.output, "2 cells in "), 1) << ended.output;
  EXPECT_EQ(ended.errors, "");
  EXPECT_TRUE(scenarios.violations().empty());
  const Json results = Json::parse(scenarios.read("results.json"));
  for (const Json& cell : results["cells"]) {
    EXPECT_EQ(cell["verdict"], "confirmed") << cell.dump();
    EXPECT_EQ(cell["ranks"], kRanks);
  }
  EXPECT_EQ(results["cells"].size(), 2u);
}

TEST(Launched, ResumeSkipsCellsThatRankZeroFoundFinished) {
  Scenarios scenarios({});
  add(scenarios, "first");
  EXPECT_EQ(run_launched(scenarios).code, 0);
  add(scenarios, "second");
  const Ended ended = run_launched(scenarios, "--resume");
  EXPECT_EQ(count(ended.output, "exit 0\n"), kRanks) << ended.output << ended.errors;
  EXPECT_TRUE(contains(ended.output, "1 of 2 cells are finished already")) << ended.output;
}

TEST(Launched, ArmThatFailsOnOneRankDoesNotEndTheRun) {
  Scenarios scenarios({});
  add(scenarios, "rank_throws");
  add(scenarios, "second");
  const Ended ended = run_launched(scenarios);
  EXPECT_EQ(count(ended.output, "exit 4\n"), kRanks) << ended.output << ended.errors;
  const std::vector<Json> cells = cells_of(scenarios);
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0]["arms"]["before"]["status"], "error");
  EXPECT_EQ(cells[0]["arms"]["before"]["reason"], "rank 1: boom");
  EXPECT_EQ(cells[1]["verdict"], "confirmed");
}

// The rank joins the arm's other ranks to report the error, so that none of them waits for it.
TEST(Launched, RankThatCannotOpenItsDeviceEndsTheArmOnAll) {
  Scenarios scenarios({});
  add(scenarios, "rank_lacks_device");
  add(scenarios, "second");
  const Ended ended = run_launched(scenarios);
  EXPECT_EQ(count(ended.output, "exit 4\n"), kRanks) << ended.output << ended.errors;
  const std::vector<Json> cells = cells_of(scenarios);
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0]["arms"]["before"]["status"], "error");
  const std::string reason = cells[0]["arms"]["before"]["reason"];
  EXPECT_TRUE(reason.starts_with("rank 1: ")) << reason;
  EXPECT_TRUE(contains(reason, "absent")) << reason;
  EXPECT_EQ(cells[1]["verdict"], "confirmed");
}

TEST(Launched, DeadRankEndsTheRunAndKeepsWrittenResults) {
  Scenarios scenarios({});
  add(scenarios, "good");
  add(scenarios, "rank_dies");
  add(scenarios, "second");
  const Ended ended = run_launched(scenarios);
  EXPECT_EQ(count(ended.output, "exit 4\n"), kRanks - 1) << ended.output << ended.errors;
  EXPECT_EQ(count(ended.output, "exit 137\n"), 1) << ended.output;
  EXPECT_EQ(count(ended.errors, "rank 1: its process has ended, or "), kRanks - 1) << ended.errors;
  const std::vector<Json> cells = cells_of(scenarios);
  ASSERT_EQ(cells.size(), 1u);
  EXPECT_EQ(cells[0]["verdict"], "confirmed");
  EXPECT_TRUE(scenarios.violations().empty());
  EXPECT_EQ(Json::parse(scenarios.read("results.json"))["cells"].size(), 1u);
}

TEST(Launched, SilentRankEndsTheRunWithinItsTimeout) {
  Scenarios scenarios({});
  add(scenarios, "rank_hangs");
  const auto start = std::chrono::steady_clock::now();
  const Ended ended = run_launched(scenarios, "--timeout 2");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(count(ended.output, "exit 4\n"), kRanks) << ended.output << ended.errors;
  EXPECT_EQ(count(ended.errors, "rank 1 did not come to barrier 'end' (#2) of group 'world' within 1.6 s"), kRanks - 1)
      << ended.errors;
  EXPECT_EQ(count(ended.errors, "this rank does not come to its next collective"), 1) << ended.errors;
}

// This launcher does not pass the signal on to the other ranks.
TEST(Launched, SignalToAnyRankEndsTheRunOnAll) {
  for (const int signalled : {0, 1}) {
    Scenarios scenarios({});
    add(scenarios, "good");
    add(scenarios, "rank_waits");
    add(scenarios, "second");
    const std::string program =
        std::string(paths::kRankProgram) + " run " + scenarios.path() + " -o " + scenarios.out();
    const std::string begun = "until grep -qs good " + scenarios.out() + "/results.jsonl; do sleep 0.01; done; ";
    const Ended ended = sample::run({std::to_string(kRanks), "60", "/bin/sh", "-c",
                                     program + " & rank=$!; test $RANK = " + std::to_string(signalled) + " && { " +
                                         begun + "kill -TERM $rank; }; wait $rank; echo exit $?"});
    EXPECT_EQ(count(ended.output, "exit 143\n"), kRanks) << ended.output << ended.errors;
    EXPECT_EQ(ended.errors, "");
    const std::vector<Json> cells = cells_of(scenarios);
    ASSERT_EQ(cells.size(), 1u) << "nothing is stated of cells that did not finish";
    EXPECT_EQ(cells[0]["id"], "good");
    EXPECT_EQ(Json::parse(scenarios.read("results.json"))["complete"], false);
  }
}

TEST(Launched, RankThatFallsSilentLateIsNamed) {
  Scenarios scenarios({});
  add(scenarios, "rank_hangs_late");
  const auto start = std::chrono::steady_clock::now();
  const Ended ended = run_launched(scenarios, "--timeout 2");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(count(ended.output, "exit 4\n"), kRanks) << ended.output << ended.errors;
  EXPECT_EQ(count(ended.errors, "the run was stopped from outside; rank 1 did not answer within 1.6 s"), kRanks - 1)
      << ended.errors;
}

/// Runs the program on three ranks, of which `stopped` stops its own process. Survivors that do not end are killed, and
/// finally the stopped rank too. `survive`: commands of a survivor's shell while its program runs as process $rank.
Ended run_with_stopped(const Scenarios& scenarios, int stopped, const std::string& survive = {}) {
  const std::string program =
      std::string(paths::kRankProgram) + " run " + scenarios.path() + " -o " + scenarios.out() + " --timeout 2";
  const std::string number = scenarios.file("stopped").string(), ended = scenarios.file("ended").string();
  return sample::run({std::to_string(kRanks), "60", "/bin/sh", "-c",
                      "test $RANK = " + std::to_string(stopped) + " && { echo $$ > " + number + "; exec " + program +
                          "; }; timeout --foreground -s KILL 25 " + program + " & rank=$!; " + survive +
                          "wait $rank; code=$?; echo exit $code; echo >> " + ended + "; test $(wc -l < " + ended +
                          ") = " + std::to_string(kRanks - 1) + " && kill -KILL $(cat " + number + "); exit $code"});
}

TEST(Launched, RankThatFallsSilentBetweenArmsEndsTheRun) {
  for (const char* name : {"rank_stops", "rank_stops_idle"}) {
    Scenarios scenarios({});
    add(scenarios, "good");
    add(scenarios, name);
    const auto start = std::chrono::steady_clock::now();
    const Ended ended = run_with_stopped(scenarios, 1);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
    EXPECT_EQ(count(ended.output, "exit 4\n"), kRanks - 1) << ended.output << ended.errors;
    EXPECT_EQ(count(ended.errors, "rank 1 did not "), kRanks - 1) << ended.errors;
    EXPECT_EQ(cells_of(scenarios).size(), 1u);
  }
}

// No arm runs that the signal could end.
TEST(Launched, SignalEndsTheWaitForASilentRankZero) {
  Scenarios scenarios({});
  add(scenarios, "head_stops");
  const std::string until_stopped = "until grep -qs '^State:.T' /proc/$(cat " + scenarios.file("stopped").string() +
                                    ")/status; do sleep 0.01; done; ";
  const auto start = std::chrono::steady_clock::now();
  const Ended ended = run_with_stopped(scenarios, 0, until_stopped + "kill -TERM $rank; ");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(count(ended.output, "exit 4\n"), kRanks - 1) << ended.output << ended.errors;
  EXPECT_EQ(count(ended.errors, "the run was stopped from outside; rank 0 did not answer within 1.6 s"), kRanks - 1)
      << ended.errors;
}

TEST(Launched, CellsOfAnotherRankCountAreRefusedBeforeAnythingRuns) {
  Scenarios scenarios({});
  add(scenarios, "good");
  scenarios.add("one", "device: meta\n");
  scenarios.add("two", "device: meta\nranks: 2\n");
  const Ended ended = run_launched(scenarios, "-f two");
  EXPECT_EQ(count(ended.output, "exit 2\n"), kRanks) << ended.output;
  const std::string error = scenarios.file("two.yaml").string() +
                            ":10:1: `ranks` is 2 for cell two, but torchrun started 3 processes; make them equal, or "
                            "choose cells with --filter\n";
  for (const char* rank : {"", "on rank 1: ", "on rank 2: "})
    EXPECT_EQ(count(ended.errors, std::string("fp8lab: error: ") + rank + error), 1) << ended.errors;
  EXPECT_EQ(count(ended.errors, "\n"), kRanks) << ended.errors;
  EXPECT_FALSE(std::filesystem::exists(scenarios.out()));
  EXPECT_TRUE(contains(run_launched(scenarios, "-f one").errors, "`ranks` is 1 for cell one"));
  EXPECT_EQ(run_launched(scenarios, "-f good").code, 0);
}

TEST(Launched, RankWithoutTheScenarioFilesReportsIt) {
  Scenarios scenarios({});
  add(scenarios, "good");
  const std::string program = std::string(paths::kRankProgram) + " run -o " + scenarios.out() + " ";
  const Ended ended = sample::run({std::to_string(kRanks), "60", "/bin/sh", "-c",
                                   "test $RANK = 1 || exit 2; " + program + scenarios.file("elsewhere").string()});
  EXPECT_EQ(ended.code, 2);
  EXPECT_TRUE(contains(ended.errors, "fp8lab: error: on rank 1: " + scenarios.file("elsewhere").string()))
      << ended.errors;
}

// The limit of the sample's devices is four ranks in one process.
TEST(Launched, RankCountIsThatOfTheLaunch) {
  Scenarios scenarios({});
  scenarios.add("many", "device: meta\nranks: 5\n");
  const Ended ended = sample::run(
      {"5", "60", "/bin/sh", "-c", std::string(paths::kRankProgram) + " run " + scenarios.path() + " --list"});
  EXPECT_EQ(ended.code, 0) << ended.errors;
  EXPECT_EQ(count(ended.output, "many\n"), 1) << ended.output;
}

TEST(Launched, CellsThatExpectACrashAreSkipped) {
  Scenarios scenarios({});
  sample::write(scenarios.file("crash.yaml"),
                sample::kFixScenario +
                    "device: meta\nranks: 3\nexpect:\n  - {arm: before, status: crashed}\n"
                    "  - {arm: after, metric: memory.peak_bytes, at_least: 0}\n");
  add(scenarios, "good");
  const Ended ended = run_launched(scenarios);
  EXPECT_EQ(count(ended.output, "exit 0\n"), kRanks) << ended.output << ended.errors;
  const std::vector<Json> cells = cells_of(scenarios);
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0]["verdict"], "skipped");
  EXPECT_TRUE(contains(cells[0]["reason"], "only a local run survives")) << cells[0]["reason"];
}

TEST(Launched, RanksThatPlanOtherCellsAreRefused) {
  Scenarios scenarios({});
  for (const char* name : {"cell0", "cell1", "cell2"}) add(scenarios, name);
  const Ended ended = run_launched(scenarios, "-f cell$RANK");
  EXPECT_EQ(count(ended.output, "exit 2\n"), kRanks) << ended.output;
  EXPECT_TRUE(contains(ended.errors, "rank 1 has other cells than rank 0; start every rank with the same arguments"))
      << ended.errors;
}

TEST(Launched, SignalEndsTheWaitForMissingRanks) {
  Scenarios scenarios({});
  add(scenarios, "good");
  const std::string program = std::string(paths::kRankProgram) + " run " + scenarios.path() + " -o " + scenarios.out();
  const std::string output = scenarios.file("output").string();
  const Ended ended = sample::run({std::to_string(kRanks), "60", "/bin/sh", "-c",
                                   "test $RANK = 0 || exit 0; " + program + " > " + output + " & rank=$!; " +
                                       "until grep -qs 'they connect over Unix sockets' " + output +
                                       "; do sleep 0.01; done; " + "kill -TERM $rank; wait $rank; echo stopped $?"});
  EXPECT_TRUE(contains(ended.output, "stopped 143\n")) << ended.output << ended.errors;
  EXPECT_EQ(ended.errors, "");
  EXPECT_FALSE(std::filesystem::exists(scenarios.out()));
}

TEST(Launched, MissingRankIsNamedOnAllWithinTheTimeout) {
  Scenarios scenarios({});
  add(scenarios, "good");
  const std::string program = std::string(paths::kRankProgram) + " run " + scenarios.path() + " -o " + scenarios.out();
  const auto start = std::chrono::steady_clock::now();
  const Ended ended = sample::run({std::to_string(kRanks), "60", "/bin/sh", "-c",
                                   "test $RANK = 1 && exit 0; " + program + " --timeout 2; echo exit $?"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  EXPECT_EQ(count(ended.output, "exit 2\n"), kRanks - 1) << ended.output << ended.errors;
  EXPECT_EQ(count(ended.errors, "rank 1 of 3 ranks did not come to /tmp/fp8lab-"), kRanks - 1) << ended.errors;
}

TEST(Launched, RanksOnSeveralHostsAreRefused) {
  Scenarios scenarios({});
  add(scenarios, "good");
  const std::string program = std::string(paths::kRankProgram) + " run " + scenarios.path() + " -o " + scenarios.out();
  const Ended ended =
      sample::run({std::to_string(kRanks), "60", "/bin/sh", "-c", "LOCAL_WORLD_SIZE=1 " + program + "; echo exit $?"});
  EXPECT_EQ(count(ended.output, "exit 2\n"), kRanks) << ended.output << ended.errors;
  EXPECT_EQ(count(ended.errors, "torchrun started 3 ranks on several hosts; a job over several hosts needs MPI"),
            kRanks)
      << ended.errors;
  EXPECT_EQ(count(ended.errors, "\n"), kRanks) << ended.errors;
}

TEST(LaunchedRanks, OrderOutsideOfThePlanIsInvalid) {
  using Order = LaunchedRanks::Order;
  EXPECT_TRUE(LaunchedRanks::is_valid(Order{.cell = 2, .arm = 2, .exit_code = 0}, 3));
  EXPECT_TRUE(LaunchedRanks::is_valid(Order{.exit_code = 255}, 3));
  for (const Order& order : {Order{.cell = 3, .arm = 0}, Order{.cell = -2, .arm = 0}, Order{.cell = 0, .arm = 3},
                             Order{.cell = 0, .arm = -1}, Order{.exit_code = 256}, Order{.exit_code = -1}})
    EXPECT_FALSE(LaunchedRanks::is_valid(order, 3)) << order.cell << " " << order.arm << " " << order.exit_code;
}

TEST(Launched, OnlyRankZeroPrintsLists) {
  Scenarios scenarios({});
  add(scenarios, "good");
  const Ended ended = run_launched(scenarios, "--list");
  EXPECT_EQ(count(ended.output, "good\n"), 1) << ended.output;
  EXPECT_EQ(count(ended.output, "exit 0\n"), kRanks) << ended.output;
}

}  // namespace
}  // namespace fp8lab

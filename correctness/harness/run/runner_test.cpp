#include "harness/run/runner.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "core/check.h"
#include "harness/results/json_codec.h"
#include "harness/run/arm_process.h"
#include "harness/run/fake_arms.h"
#include "harness/run/fake_command.h"
#include "harness/scenario/parsed.h"
#include "harness/scenario/sample.h"
#include "harness/temporary_directory.h"

// Arms in real processes, which crash, hang and are killed.
namespace fp8lab {
namespace {

PlannedCell cell_named(const std::string& name) {
  const Vocabulary vocabulary = sample::vocabulary();
  std::string text = sample::kFixScenario + R"(device: meta
expect:
  - {metric: memory.retained_bytes, arm: before, equals: predicted}
  - {metric: memory.retained_bytes, arm: after, equals: 0}
)";
  text.replace(text.find("name: sample"), 12, "name: " + name);
  return plan_cells(parse_scenario(text, name + ".yaml", vocabulary), vocabulary).at(0);
}

/// Runs one arm to its end.
ArmResult run_arm(const std::string& scenario, Arm arm) {
  ArmProcess process(sample::fake_command(), cell_named(scenario).config, arm);
  while (!process.ended()) {
    pollfd fd{process.output_fd(), POLLIN, 0};
    ::poll(&fd, 1, 5);
    process.drain();
  }
  return process.result();
}

std::vector<CellRecord> run_all(const std::vector<PlannedCell>& cells, int jobs, std::optional<double> timeout_s = {}) {
  std::vector<CellRecord> records;
  RunnerOptions options;
  options.jobs = jobs;
  options.timeout_s = timeout_s;
  options.command = sample::fake_command();
  options.predict = sample::fake_prediction;
  RunnerEvents events;
  events.finished = [&](CellRecord&& record) { records.push_back(std::move(record)); };
  const Vocabulary vocabulary = sample::vocabulary();
  EXPECT_EQ(run_cells(cells, vocabulary, options, events), 0);
  return records;
}

bool is_alive(pid_t pid) { return ::kill(pid, 0) == 0; }

TEST(ArmProcess, ReturnsTheArmsResult) {
  const ArmResult result = run_arm("sample", Arm::kBefore);
  EXPECT_EQ(result.status, "ok");
  EXPECT_EQ(result.metrics.at("memory.retained_bytes").value, 100);
  EXPECT_EQ(result.retained_by_holder.size(), 2u);
  EXPECT_EQ(result.sequence_hash, "00000000000000aa");
  EXPECT_EQ(result.timeline_json, "{\"events\": []}");
  EXPECT_EQ(result.output_tail, "");
  EXPECT_GT(result.seconds, 0);
}

TEST(ArmProcess, ThatWritesWithoutEndIsReadInParts) {
  ArmProcess process({"/bin/sh", {"-c", "yes"}}, cell_named("sample").config, Arm::kAfter);
  for (int reads = 0; reads < 100; ++reads) process.drain();
  EXPECT_FALSE(process.ended());
  process.time_out(1);
  while (!process.ended()) process.drain();
  EXPECT_EQ(process.result().status, "timeout");
}

TEST(ArmProcess, SegmentationFaultIsACrashWithItsSignal) {
  const ArmResult result = run_arm("before_segv", Arm::kBefore);
  EXPECT_EQ(result.status, "crashed");
  EXPECT_EQ(result.signal, "SIGSEGV");
  EXPECT_NE(result.reason.find("SIGSEGV"), std::string::npos);
}

TEST(ArmProcess, AbortAndKillAreDistinguished) {
  EXPECT_EQ(run_arm("after_abort", Arm::kAfter).signal, "SIGABRT");
  const ArmResult killed = run_arm("before_kill", Arm::kBefore);
  EXPECT_EQ(killed.signal, "SIGKILL");
  EXPECT_NE(killed.reason.find("memory"), std::string::npos);
}

TEST(ArmProcess, EndingWithoutAResultIsACrash) {
  EXPECT_EQ(run_arm("before_exit", Arm::kBefore).reason, "exited without a result");
  const std::string unread = "exited with a result that cannot be read: ";
  EXPECT_TRUE(run_arm("before_garbage", Arm::kBefore).reason.starts_with(unread));
  EXPECT_EQ(run_arm("before_mebibytes", Arm::kBefore).reason,
            unread + "memory.peak_bytes is in 'MiB'; its unit is 'B'");
  EXPECT_EQ(run_arm("before_unknown", Arm::kBefore).reason,
            unread + "there is no metric 'memory.own_bytes'; `fp8lab metrics` lists them");
  const ArmResult status = run_arm("after_exit3", Arm::kAfter);
  EXPECT_EQ(status.status, "crashed");
  EXPECT_EQ(status.reason, "exited with status 3: the last words");
  EXPECT_EQ(status.output_tail, "first line\nthe last words\n\n");
}

TEST(ArmProcess, OutOfMemoryAndErrorsCarryTheirMessage) {
  const ArmResult oom = run_arm("after_oom", Arm::kAfter);
  EXPECT_EQ(oom.status, "out_of_memory");
  EXPECT_EQ(oom.reason, "device memory: 3 GiB asked, 2 GiB left");
  EXPECT_EQ(run_arm("before_bad_alloc", Arm::kBefore).status, "out_of_memory");
  const ArmResult error = run_arm("after_error", Arm::kAfter);
  EXPECT_EQ(error.status, "error");
  EXPECT_NE(error.reason.find("quantize: \"x\" <&>"), std::string::npos);
}

TEST(ArmProcess, ReasonOfManyLinesBecomesOneLine) {
  EXPECT_EQ(one_line("out of memory; held by:\n      8200 B  a\n\t 12 B  b"),
            "out of memory; held by: 8200 B a 12 B b");
}

TEST(ArmProcess, LongOutputIsCutToItsEnd) {
  const ArmResult result = run_arm("before_spam", Arm::kBefore);
  EXPECT_EQ(result.status, "crashed");
  EXPECT_LE(result.output_tail.size(), 4096u);
  EXPECT_NE(result.output_tail.find("line 99999 of much output"), std::string::npos);
}

TEST(ArmProcess, ResultOfManyMegabytesIsReceived) {
  const ArmResult result = run_arm("before_big", Arm::kBefore);
  EXPECT_EQ(result.status, "ok");
  EXPECT_EQ(result.timeline_json.size(), std::size_t{8} << 20);
}

TEST(ArmProcess, NanIsReceivedAsNan) {
  EXPECT_TRUE(std::isnan(run_arm("after_nan", Arm::kAfter).metrics.at("memory.retained_bytes").value.value()));
}

TEST(ArmProcess, ChildrenOfTheArmEndWithIt) {
  const ArmResult result = run_arm("before_family", Arm::kBefore);
  ASSERT_EQ(result.status, "ok");
  const auto grandchild = static_cast<pid_t>(result.retained_by_holder.at(0).second);
  // The grandchild is killed at once but reaped by init, which takes a while.
  const auto give_up = Clock::now() + std::chrono::seconds(10);
  while (is_alive(grandchild) && Clock::now() < give_up) {
    const std::string stat = "/proc/" + std::to_string(grandchild) + "/stat";
    std::FILE* file = std::fopen(stat.c_str(), "r");
    if (!file) break;
    char state = '?';
    const int fields = std::fscanf(file, "%*d %*s %c", &state);
    std::fclose(file);
    if (fields == 1 && state == 'Z') return;
  }
  EXPECT_LT(Clock::now(), give_up);
}

TEST(ArmProcess, MissingProgramIsACrashThatNamesIt) {
  for (const bool before_it_is_asked : {false, true}) {
    ArmProcess process({"/nonexistent/program", {}});
    pollfd output{process.output_fd(), POLLIN, 0};
    if (before_it_is_asked) ::poll(&output, 1, 10000);
    process.start(cell_named("sample").config, Arm::kAfter, ArmProcess::Then::kEnd);
    while (!process.ended()) ::poll(nullptr, 0, 1);
    EXPECT_EQ(process.result().status, "crashed");
    EXPECT_NE(process.result().reason.find("cannot start "), std::string::npos);
  }
}

TEST(ArmProcess, DestructionEndsTheProcess) {
  auto process = std::make_unique<ArmProcess>(sample::fake_command(), cell_named("before_deaf").config, Arm::kBefore);
  const auto start = Clock::now();
  process.reset();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
}

// A program that waits for signals itself, or whose parent has blocked some, starts arms with default signals.
TEST(ArmProcess, InheritsNoBlockedSignals) {
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &term, &before);
  const auto handler = ::signal(SIGPIPE, SIG_IGN);
  const ArmResult result = run_arm("after_signals", Arm::kAfter);
  ::signal(SIGPIPE, handler);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(result.retained_by_holder,
            (std::vector<std::pair<std::string, std::int64_t>>{{"blocks SIGTERM", 0}, {"ignores SIGPIPE", 0}}));
}

TEST(ArmProcess, LeavesNoFileDescriptorOpen) {
  const auto open_descriptors = [] {
    int count = 0;
    for (int fd = 0; fd < 256; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
    return count;
  };
  const int before = open_descriptors();
  for (int i = 0; i < 3; ++i) run_arm("before_segv", Arm::kBefore);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Runner, DeadArmDoesNotAffectOtherCells) {
  std::vector<PlannedCell> cells;
  for (const char* name :
       {"one", "before_segv", "two", "after_abort", "before_kill", "after_oom", "after_broken", "three"})
    cells.push_back(cell_named(name));
  std::map<std::string, std::string> verdicts;
  for (const CellRecord& record : run_all(cells, 3)) verdicts[record.config.id] = name(record.verdict);
  const std::map<std::string, std::string> expected{
      {"one", "confirmed"},       {"before_segv", "crashed"}, {"two", "confirmed"},          {"after_abort", "crashed"},
      {"before_kill", "crashed"}, {"after_oom", "crashed"},   {"after_broken", "not_fixed"}, {"three", "confirmed"}};
  EXPECT_EQ(verdicts, expected);
}

TEST(Runner, HangingArmIsEndedAndItsCellContinues) {
  const auto start = Clock::now();
  const auto records = run_all({cell_named("before_hang")}, 1, 1.5);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].verdict, Verdict::kTimeout);
  EXPECT_EQ(records[0].arms.at(Arm::kBefore).status, "timeout");
  EXPECT_EQ(records[0].arms.at(Arm::kBefore).reason, "took longer than 1.5 s");
  EXPECT_EQ(records[0].arms.at(Arm::kAfter).status, "ok");
}

TEST(Runner, TemporaryFilesOfAKilledArmAreRemoved) {
  const sample::TemporaryDirectory folder;
  const char* const before = std::getenv("TMPDIR");
  const std::string restored = before != nullptr ? before : "/tmp";
  ::setenv("TMPDIR", folder.string().c_str(), 1);
  const auto records = run_all({cell_named("before_litter")}, 1);
  ::setenv("TMPDIR", restored.c_str(), 1);
  const std::string made = records.at(0).arms.at(Arm::kBefore).output_tail;
  EXPECT_TRUE(made.starts_with(folder.string() + "/fp8lab-run-")) << made;
  EXPECT_NE(made.find("/fp8lab-litter-"), std::string::npos) << made;
  EXPECT_TRUE(std::filesystem::is_empty(folder.string()));
}

TEST(Runner, ArmThatIgnoresTerminationIsKilled) {
  const auto records = run_all({cell_named("before_deaf")}, 1, 1.5);
  EXPECT_EQ(records.at(0).verdict, Verdict::kTimeout);
}

TEST(Runner, ExpectedCrashPassesItsGate) {
  PlannedCell cell = cell_named("before_segv");
  std::erase_if(cell.expect, [](const Expectation& e) { return e.of_group; });  // as planning does
  cell.expect[0] = {};
  cell.expect[0].side = Side::kBefore;
  cell.expect[0].comparison = Comparison::kEnds;
  cell.expect[0].status = "crashed";
  cell.expect[0].signal = "SIGSEGV";
  const auto records = run_all({cell}, 1);
  EXPECT_EQ(records.at(0).verdict, Verdict::kConfirmed) << records.at(0).reason;
}

TEST(Runner, DeadArmHasPredictionsToo) {
  const auto records = run_all({cell_named("before_segv")}, 1);
  const MetricValue& metric = records.at(0).arms.at(Arm::kBefore).metrics.at("memory.retained_bytes");
  EXPECT_EQ(metric.predicted, 100);
  EXPECT_EQ(metric.value, std::nullopt);
  EXPECT_EQ(metric.reason, "the arm ended crashed");
  EXPECT_EQ(metric.unit, "B");
}

TEST(Runner, ArmWithoutEnoughMemory_HasTheFigureThatItNeeded) {
  const auto records = run_all({cell_named("before_oom")}, 1);
  const auto& arms = records.at(0).arms;
  const MetricValue& needed = arms.at(Arm::kBefore).metrics.at("memory.predicted_retained_bytes");
  EXPECT_EQ(needed.value, 100);
  EXPECT_EQ(needed.unit, "B");
  EXPECT_EQ(arms.at(Arm::kBefore).metrics.at("memory.retained_bytes").value, std::nullopt);
  const auto dead = run_all({cell_named("before_segv")}, 1);
  EXPECT_FALSE(dead.at(0).arms.at(Arm::kBefore).metrics.contains("memory.predicted_retained_bytes"));
}

TEST(Runner, FailedPredictionIsAnErrorOfItsCellOnly) {
  RunnerOptions options;
  options.command = sample::fake_command();
  options.predict = [](const CellConfig& cell, Arm) -> std::map<std::string, double> {
    if (cell.scenario == "bad") fail("no closed form for this");
    return {{"memory.retained_bytes", 100}};
  };
  std::map<std::string, Verdict> verdicts;
  RunnerEvents events;
  events.finished = [&](CellRecord&& record) { verdicts[record.config.id] = record.verdict; };
  run_cells({cell_named("bad"), cell_named("good")}, sample::vocabulary(), options, events);
  EXPECT_EQ(verdicts["bad"], Verdict::kCrashed);
  EXPECT_EQ(verdicts["good"], Verdict::kConfirmed);
}

TEST(Runner, SkippedCellsAreReportedWithoutRunning) {
  PlannedCell cell = cell_named("before_hang");
  cell.skip_reason = "no GPU";
  const auto records = run_all({cell}, 1);
  EXPECT_EQ(records.at(0).verdict, Verdict::kSkipped);
  EXPECT_EQ(records.at(0).reason, "no GPU");
  EXPECT_TRUE(records.at(0).arms.empty());
}

TEST(Runner, TimedCellsRunAloneAfterAllOthers) {
  const auto order_of = [](std::vector<PlannedCell> cells) {
    std::vector<std::string> order;
    for (const CellRecord& record : run_all(cells, 3, 2.0)) order.push_back(record.config.id);
    return order;
  };
  PlannedCell timed = cell_named("timed");
  timed.config.measure = {"time"};
  // The hanging cell needs a while. If a quick cell ran at the same time, it would finish first.
  EXPECT_EQ(order_of({cell_named("before_hang"), timed, cell_named("quick")}),
            (std::vector<std::string>{"quick", "before_hang", "timed"}));
  for (const CellRecord& record : run_all({cell_named("before_hang"), timed}, 3, 4.0))
    EXPECT_EQ(record.seconds < 4.0, record.config.id == "timed") << "waiting for others counts in " << record.config.id;
  PlannedCell slow = cell_named("before_hang");
  slow.config.measure = {"time"};
  EXPECT_EQ(order_of({slow, timed}), (std::vector<std::string>{"before_hang", "timed"}));
  EXPECT_EQ(order_of({slow, cell_named("quick")}), (std::vector<std::string>{"quick", "before_hang"}));
  EXPECT_EQ(order_of({cell_named("before_hang"), cell_named("quick")}),
            (std::vector<std::string>{"quick", "before_hang"}));
}

TEST(Runner, CommandLineTimeoutPrecedesTheScenarios) {
  PlannedCell cell = cell_named("quick");
  EXPECT_EQ(time_limit(cell, {}), 600.0);
  RunnerOptions asked;
  asked.timeout_s = 20.0;
  EXPECT_EQ(time_limit(cell, asked), 20.0);
  cell.timeout_s = 5.0;
  EXPECT_EQ(time_limit(cell, {}), 5.0);
  EXPECT_EQ(time_limit(cell, asked), 20.0);
}

TEST(Runner, FailingSinkStopsTheRunAndEveryChild) {
  RunnerOptions options;
  options.jobs = 2;
  options.command = sample::fake_command();
  RunnerEvents events;
  events.finished = [](CellRecord&&) { fail("disk full"); };
  const auto start = Clock::now();
  EXPECT_THROW(run_cells({cell_named("before_hang"), cell_named("ok")}, sample::vocabulary(), options, events), Error);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace fp8lab
